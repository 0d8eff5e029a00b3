// A Strands agent in TypeScript (or, as here, JavaScript): npm install @strands-agents/sdk openai zod
import { Agent, tool } from "@strands-agents/sdk";
import { OpenAIModel } from "@strands-agents/sdk/models/openai";
import { z } from "zod";

const OPERATIONS = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b };

const calculator = tool({
  name: "calculator",
  description: "Compute one operation on two integers.",
  inputSchema: z.object({ expression: z.string(), digits: z.number().default(0) }),
  callback: ({ expression }) => {
    const [left, operator, right] = expression.split(" ");
    return String(OPERATIONS[operator](Number(left), Number(right)));
  },
});

// The SDK of OpenAI reads the address and the key from the environment.
const model = new OpenAIModel({ modelId: process.env.OPENAI_MODEL });
const agent = new Agent({ model, tools: [calculator], printer: false });
console.log(String(await agent.invoke(process.argv[2])));
