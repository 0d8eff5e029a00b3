"""An agent of one of several frameworks, chosen by name: python sdk_agent.py NAME QUESTION."""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

MODEL = os.environ["OPENAI_MODEL"]


def compute(expression: str) -> str:
    try:
        left, operator, right = expression.split()
        return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))
    except (ValueError, KeyError) as error:
        return f"error: {error}"


async def openai_agents(question: str, *, streams: bool) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def calculator(expression: str, digits: int = 0) -> str:
        """Compute one operation on two integers."""
        return compute(expression)

    model = (OpenAIResponsesModel if streams else OpenAIChatCompletionsModel)(model=MODEL, openai_client=AsyncOpenAI())
    agent: Any = Agent(name="calculator", instructions="You compute.", tools=[calculator], model=model)
    if not streams:
        return str((await Runner.run(agent, question)).final_output)
    run = Runner.run_streamed(agent, question)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


def anthropic_loop(question: str) -> str:
    import anthropic

    client, schema = anthropic.Anthropic(), {"type": "object", "properties": {"expression": {"type": "string"}}}
    tools: Any = [{"name": "calculator", "description": "Compute.", "input_schema": schema}]
    messages: Any = [{"role": "user", "content": question}]
    while True:
        with client.messages.stream(
            model=MODEL, messages=messages, tools=tools, system="You compute.", max_tokens=500
        ) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        uses: list[Any] = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            return "".join(block.text for block in message.content if block.type == "text")
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": compute(one.input["expression"])}
                   for one in uses]  # fmt: skip
        messages.append({"role": "user", "content": results})


def pydantic(question: str, protocol: str) -> str:
    from pydantic_ai import Agent

    model: Any
    if protocol == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel

        model = AnthropicModel(MODEL)
    elif protocol == "responses":
        from pydantic_ai.models.openai import OpenAIResponsesModel

        model = OpenAIResponsesModel(MODEL)
    else:
        from pydantic_ai.models.openai import OpenAIChatModel

        model = OpenAIChatModel(MODEL)
    agent = Agent(model, system_prompt="You compute.")

    @agent.tool_plain
    def calculator(expression: str, digits: int = 0) -> str:
        """Compute one operation on two integers."""
        return compute(expression)

    return str(agent.run_sync(question).output)


def main() -> None:
    name, question = sys.argv[1:]
    if name.startswith("openai_agents"):
        print(asyncio.run(openai_agents(question, streams=name.endswith("stream"))))
    elif name == "anthropic":
        print(anthropic_loop(question))
    else:
        print(pydantic(question, name.partition("_")[2]))


if __name__ == "__main__":
    main()
