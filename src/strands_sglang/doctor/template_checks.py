"""Checks of tokenizer, chat template, tool parser and agent.

Invariant: the agent's `build` is called once and its agent is not run; no tool is called.
"""

from __future__ import annotations

import asyncio
from typing import Any

from strands_sglang._terminal import counted
from strands_sglang.chat.conversation_shape import Step
from strands_sglang.chat.differences import first_difference
from strands_sglang.chat.messages import template_system, template_tools
from strands_sglang.chat.parser_detection import detect_tool_parser, resolve_tool_parser
from strands_sglang.chat.soundness.checks import isolates_data
from strands_sglang.doctor.report import Finding, failed, passed, skipped, warned
from strands_sglang.doctor.subject import Subject
from strands_sglang.errors import ConfigurationError, StrandsSGLangError, TemplateRefusedError
from strands_sglang.runs.preflight import compare_template

_NO_TOOLS = (
    "pass a template that writes tools and calls as chat_template= (see docs/templates.md), or use the tokenizer of a "
    "model that was trained to call tools"
)


async def tokenizer(subject: Subject) -> Finding:
    """Check that the tokenizer is the server's."""
    try:
        await subject.loaded_tokenizer()
    except ConfigurationError as error:
        return failed(str(error), "pass the folder or hub name of the served model's tokenizer, or a loaded tokenizer")
    facts = await subject.require_server()
    try:
        same = await subject.same_ids()
    except ConfigurationError as error:
        return failed(
            str(error),
            f"use the tokenizer of the served model: the server uses {facts.tokenizer_path or facts.model_path}",
        )
    if same is None:
        return warned(
            "the server does not answer /tokenize, so the tokenizers were not compared",
            "make sure that both come from the same folder: wrong ids mean other tokens, or crash the server. If the "
            "server is busy, check again when it is idle",
        )
    return passed("gives the same ids as the server's")


async def template(subject: Subject) -> Finding:
    """Check that the chat template renders what the server's renders."""
    facts = await subject.require_server()
    try:
        await subject.same_ids()
    except ConfigurationError:
        return skipped("needs the tokenizer of the server")
    found = await compare_template(subject.probe(), facts, await subject.requirements())
    if found is None:
        return skipped("the server does not render messages on /tokenize, or the template rejects the probe")
    if found.same:
        return passed("renders a conversation as the server's does")
    return warned(
        f"differs from the server's: {first_difference(found.there, found.here)}",
        "episodes use the template here. If the server has the right one, use the tokenizer of the served model or "
        "pass its template as chat_template=; if yours is right, start the server with --chat-template",
    )


async def soundness(subject: Subject) -> Finding:
    """Check for which steps messages can be appended exactly, and whether tools reach the model."""
    try:
        bridge, sound = await subject.bridge()
    except StrandsSGLangError as error:
        return failed(str(error), "pass a chat template as chat_template=, as Jinja source text")
    tools = await subject.tools()
    written = bridge.template.writes_calls
    if not written:
        found = "the template refuses or drops tool calls"
        if tools:
            return failed(f"{found}, and the agent has {counted(len(tools), 'tool')}", _NO_TOOLS)
        if tools is None:
            return warned(found, f"if your agent has tools: {_NO_TOOLS}")
    elif not bridge.template.writes_tools and tools != []:
        return warned(
            "the template writes tool calls, but not the available tools: the model does not see them",
            "describe the tools in the system prompt, unless the model was trained for exactly these",
        )
    proved = ", ".join(sound.proved) or "nothing"
    if written and Step.TOOL.value not in sound.proved:
        return warned(f"proved: {proved}. {sound.advice}", "pass on_template_rewrite='fork', or another template")
    if not await asyncio.to_thread(isolates_data, bridge):
        return warned(
            f"proved: {proved}. Control-token text in data cannot be encoded as plain text with this tokenizer",
            "filter such text from users and tools, or use a fast tokenizer",
        )
    return passed(f"proved: {proved}. {sound.advice}".strip())


async def parser(subject: Subject) -> Finding:
    """Check that a tool parser reads the calls that the chat template writes."""
    bridge, _ = await subject.require_bridge()
    chosen = subject.options.get("tool_parser", "auto")
    tools = await subject.tools()
    detected = await asyncio.to_thread(detect_tool_parser, bridge)
    try:
        used = resolve_tool_parser(chosen, bridge)
    except StrandsSGLangError as error:
        return failed(str(error), "pass a name that exists, or leave tool_parser out: it is detected from the template")
    if used.parser is None:
        if tools == []:
            return skipped("the agent has no tools")
        problem = used.problem.partition(". ")
        report = failed if tools else warned
        return report(problem[0], problem[2] or "set the parser of your model as tool_parser=")
    if detected.parser is None:
        if not bridge.template.writes_calls:
            return passed(f"{used.parser.name}, as you chose; the template writes no calls to compare with")
        return warned(
            f"{used.parser.name}, as you chose; {detected.problem.partition('. ')[0]}",
            "sample a few turns and look whether calls are parsed: a wrong parser turns every call into text",
        )
    if type(used.parser) is not type(detected.parser):
        return failed(
            f"tool_parser={used.parser.name!r} does not read the calls that the chat template writes; "
            f"{detected.parser.name!r} does",
            f"use tool_parser={detected.parser.name!r}, or leave it out: with a wrong parser no call is ever executed "
            "and every turn counts as an answer",
        )
    return passed(f"{used.parser.name}, which reads the calls that the template writes")


async def agent(subject: Subject) -> Finding:
    """Build the agent and render its first prompt."""
    if subject.build is None:
        return skipped("no agent was given")
    await subject.require_bridge()
    try:
        made, model = await subject.agent()
    except Exception as error:
        return failed(
            f"build raised {type(error).__name__}: {error!s:.300}",
            "build(task, model) must return a Strands agent, a graph, a swarm, or a function without arguments",
        )
    tools = await subject.tools()
    if tools is None:
        return passed(f"built a {type(made).__name__}, whose prompts are not known before it runs")
    if getattr(made, "model", model) is not model:
        return failed(
            "the agent does not use the model that it was given: its tokens would not be recorded",
            "pass the model on: Agent(model=model, ...)",
        )
    tokens = await asyncio.to_thread(_first_prompt, subject, made, model, tools)
    if isinstance(tokens, Finding):
        return tokens
    facts = await subject.require_server()
    named = (
        f"{counted(len(tools), 'tool')}: {', '.join(str(tool['name']) for tool in tools[:8])}" if tools else "no tools"
    )
    if facts.context is not None and tokens >= facts.context:
        return failed(
            f"the first prompt has {tokens} tokens, the server's context is {facts.context}",
            "shorten the system prompt or the tools, or start the server with a larger --context-length",
        )
    if facts.context is not None and tokens > facts.context // 2:
        return warned(
            f"the first prompt has {tokens} of {facts.context} tokens of the server's context",
            "little is left for turns and tool results: shorten system prompt and tools, or raise --context-length",
        )
    return passed(f"built with {named}; its first prompt has {tokens} tokens")


def _first_prompt(subject: Subject, made: Any, model: Any, tools: list[Any]) -> int | Finding:
    """Return the number of tokens of the agent's first prompt; a finding if it cannot be rendered."""
    bridge = model.planner.bridge
    given = getattr(made, "system_prompt", None)
    system = given if given is None or isinstance(given, str) else template_system(None, given)
    prompt = subject.task.prompt
    text = prompt if isinstance(prompt, str) else "\n".join(str(block.get("text", "")) for block in prompt)
    messages = [*([{"role": "system", "content": system}] if system is not None else ())]
    messages.append({"role": "user", "content": text})
    try:
        rendered = bridge.template.render(messages, tools=template_tools(tools))
    except TemplateRefusedError as error:
        return failed(f"the chat template refuses the first prompt: {error.template_message}", _NO_TOOLS)
    return len(bridge.encoder.encode(rendered.text, rendered.escapes))
