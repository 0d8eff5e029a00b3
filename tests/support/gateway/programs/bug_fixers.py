"""Agents of frameworks that fix a bug with a shell, for scripts/agents: python bug_fixers.py NAME QUESTION."""

# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODEL = os.environ["OPENAI_MODEL"]
KEY = os.environ["OPENAI_API_KEY"]
OPENAI_URL = os.environ["OPENAI_BASE_URL"]
SYSTEM = "You fix bugs."


def run(command: str) -> str:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


async def claude_agent_sdk(question: str) -> str:
    from claude_agent_sdk import ClaudeAgentOptions, query

    options, last = ClaudeAgentOptions(permission_mode="bypassPermissions", model=MODEL), ""
    async for message in query(prompt=question, options=options):
        last = getattr(message, "result", None) or last
    return last


def langgraph(question: str, protocol: str) -> str:
    from langchain.agents import create_agent
    from langchain_core.tools import tool

    @tool
    def shell(command: str, timeout: float = 60.0) -> str:
        """Run a command."""
        return run(command)

    model: Any
    if protocol == "messages":
        from langchain_anthropic import ChatAnthropic

        model = ChatAnthropic(model=MODEL, base_url=os.environ["ANTHROPIC_BASE_URL"], api_key=KEY, streaming=True)
    else:
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model=MODEL, use_responses_api=protocol == "responses")
    agent: Any = create_agent(model, [shell], system_prompt=SYSTEM)
    return str(agent.invoke({"messages": [{"role": "user", "content": question}]})["messages"][-1].content)


def mini_swe_agent(question: str) -> str:
    import minisweagent
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models import get_model

    given = yaml.safe_load((Path(minisweagent.__file__).parent / "config" / "mini.yaml").read_text())
    settings = {**given["model"], "model_name": f"openai/{MODEL}"}
    settings["model_kwargs"] = {**settings.get("model_kwargs", {}), "api_base": OPENAI_URL, "api_key": KEY}
    own = {name: given["agent"][name] for name in ("system_template", "instance_template")}
    return str(DefaultAgent(get_model(config=settings), LocalEnvironment(), **own).run(question))


def openhands(question: str) -> str:
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.tools.terminal import TerminalTool

    model = LLM(model=f"openai/{MODEL}", base_url=OPENAI_URL, api_key=KEY, usage_id="agent")
    agent = Agent(llm=model, tools=[Tool(name=TerminalTool.name)])
    conversation = Conversation(agent=agent, workspace=os.getcwd())
    conversation.send_message(question)
    conversation.run()
    return ""


def smolagents(question: str) -> str:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def shell(command: str) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        return run(command)

    model = OpenAIServerModel(model_id=MODEL, api_base=OPENAI_URL, api_key=KEY)
    return str(ToolCallingAgent(tools=[shell], model=model, max_steps=8).run(question))


def main() -> None:
    name, question = sys.argv[1:]
    if name == "claude_agent_sdk":
        print(asyncio.run(claude_agent_sdk(question)))
    elif name.startswith("langgraph_"):
        print(langgraph(question, name.partition("_")[2]))
    else:
        print({"mini_swe_agent": mini_swe_agent, "openhands": openhands, "smolagents": smolagents}[name](question))


if __name__ == "__main__":
    main()
