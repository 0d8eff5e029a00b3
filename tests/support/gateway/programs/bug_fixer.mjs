// An agent of the AI SDK that fixes a bug with a shell: node bug_fixer.mjs PROTOCOL QUESTION (scripts/agents)
import { execSync } from "node:child_process";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [protocol, prompt] = process.argv.slice(2);
const apiKey = process.env.OPENAI_API_KEY;
const baseURL = process.env.OPENAI_BASE_URL;
const provider = {
  chat: () => createOpenAICompatible({ name: "gateway", baseURL, apiKey }),
  responses: () => createOpenAI({ baseURL, apiKey }),
  messages: () => createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`, apiKey }),
}[protocol]();

const shell = tool({
  description: "Run a command.",
  inputSchema: z.object({ command: z.string(), timeout: z.number().default(60.5), dry: z.boolean().default(false) }),
  execute: async ({ command }) => {
    try {
      return execSync(command).toString();
    } catch (error) {
      return String(error);
    }
  },
});
const options = {
  model: provider(process.env.OPENAI_MODEL),
  system: "You fix bugs.",
  prompt,
  tools: { shell },
  stopWhen: stepCountIs(8),
};
if (protocol === "chat") {
  console.log((await generateText(options)).text);
} else {
  for await (const text of streamText(options).textStream) process.stdout.write(text);
}
