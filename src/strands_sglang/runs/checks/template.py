"""Checks of tokenizer, chat template, tool parser and agent.

Invariant: the agent's `build` is called once and its agent is not run; no tool is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from strands_sglang._terminal import counted
from strands_sglang.chat.conversation_shape import Step
from strands_sglang.chat.differences import first_difference
from strands_sglang.chat.messages import template_system, template_tools
from strands_sglang.chat.parser_detection import detect_tool_parser, resolve_tool_parser
from strands_sglang.chat.soundness.checks import isolates_data
from strands_sglang.errors import ConfigurationError, StrandsSGLangError, TemplateRefusedError
from strands_sglang.runs.checks.setup import Finding, Setup, failed, model_config, passed, skipped, warned

logger = logging.getLogger(__name__)

_MAX_TOKENS = 96  # added tokens that are compared at most
_PLAIN = "Compute 615 * 17 - 88, step by step.\n\tNaïve café, 東京 🙂 def f(x): return x[0]"
_MESSAGES = [
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And 4?"},
]
_NO_TOOLS = (
    "pass a template that writes tools and calls as chat_template= (see docs/templates.md), or use the tokenizer of a "
    "model that was trained to call tools"
)


async def tokenizer(setup: Setup) -> Finding:
    """Check that the tokenizer is the server's."""
    try:
        await setup.loaded_tokenizer()
    except ConfigurationError as error:
        return failed(error, "pass the folder or hub name of the served model's tokenizer, or a loaded tokenizer")
    facts = await setup.require_server()
    try:
        compared = await _compared(setup)
    except ConfigurationError as error:
        return failed(
            error,
            f"use the tokenizer of the served model: the server uses {facts.tokenizer_path or facts.model_path}",
        )
    if not compared:
        return warned(
            "the server does not answer /tokenize, so the tokenizers were not compared",
            "make sure that both come from the same folder: wrong ids mean other tokens, or crash the server. If the "
            "server is busy, check again when it is idle",
        )
    return passed("gives the same ids as the server's")


async def _compared(setup: Setup) -> bool:
    """Compare the tokenizer with the server's, once, or raise; return False if the server does not report its ids."""

    async def compare() -> bool:
        # A busy server may answer too late: ask once more.
        return await _compare_tokenizers(setup) or await _compare_tokenizers(setup)

    return await setup.once("compared", compare)


async def _compare_tokenizers(setup: Setup) -> bool:
    facts, tokenizer = await setup.require_server(), await setup.require_tokenizer()
    added, where = added_tokens(tokenizer), f"the server uses {facts.tokenizer_path or facts.model_path}"
    in_template = _template_tokens(tokenizer, added, setup.options.get("chat_template"))
    size = _vocabulary_size(facts.model_path)
    # Commonly served models have a few added tokens beyond the vocabulary that no text produces, such as image tokens.
    highest = max([added[text] for text in in_template] + [int(len(tokenizer) / 1.01)])
    if size is not None and highest >= size:
        raise ConfigurationError(
            f"the tokenizer must fit the server's vocabulary of {size} ids, got one with {len(tokenizer)} ids: an id "
            f"outside the vocabulary can crash the server. Use the tokenizer of the served model; {where}"
        )
    texts = [_PLAIN, *_distinguishing_tokens(tokenizer, added, in_template)]
    answer = await setup.probe.tokenize(facts.url, {"prompt": texts, "add_special_tokens": False})
    if answer is None or len(answer) != len(texts):
        return False
    for text, theirs in zip(texts, answer, strict=True):
        ours = list(tokenizer.encode(text, add_special_tokens=False))
        if ours != theirs:
            raise ConfigurationError(
                f"the tokenizer must be the server's, but {text!r:.80} is {ours[:8]} here and {theirs[:8]} on the "
                "server: ids would mean other tokens to the model, or crash the server. Use the tokenizer of the "
                f"served model: AutoTokenizer.from_pretrained(...); {where}"
            )
    return True


def added_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the added tokens of a tokenizer: id by text."""
    added: dict[Any, Any] = getattr(tokenizer, "get_added_vocab", dict)()
    return {str(text): int(id) for text, id in added.items()}


def _template_tokens(tokenizer: Any, added: Mapping[str, int], chat_template: str | None) -> list[str]:
    source = chat_template if chat_template is not None else getattr(tokenizer, "chat_template", None)
    return [text for text in added if isinstance(source, str) and text in source]


def _distinguishing_tokens(tokenizer: Any, added: Mapping[str, int], in_template: list[str]) -> list[str]:
    """Return the tokens by which tokenizers of one family differ: of the template, special ones, highest added ids."""
    special = [str(text) for text in getattr(tokenizer, "all_special_tokens", ())]
    highest = sorted(added, key=lambda text: -added[text])
    return [text for text in dict.fromkeys([*in_template, *special, *highest]) if text.strip()][:_MAX_TOKENS]


def _vocabulary_size(model_path: str | None) -> int | None:
    config = model_config(model_path)
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) and not isinstance(size, bool) else None


async def template(setup: Setup) -> Finding:
    """Check that the chat template renders what the server's renders; no error, because runs render it here."""
    facts = await setup.require_server()
    try:
        await _compared(setup)
    except ConfigurationError:
        return skipped("needs the tokenizer of the server")
    unknown = skipped("the server does not render messages on /tokenize, or the template rejects the probe")
    tokenizer, arguments = await setup.require_tokenizer(), setup.template_arguments
    theirs = await setup.probe.tokenize(facts.url, {"messages": _MESSAGES, "chat_template_kwargs": arguments})
    if theirs is None:
        return unknown
    if (own := setup.options.get("chat_template")) is not None:
        arguments["chat_template"] = own
    try:
        here = str(tokenizer.apply_chat_template(_MESSAGES, tokenize=False, add_generation_prompt=True, **arguments))
    except Exception as error:  # the template rejects these messages; `SGLangModel` reports what it requires
        logger.debug("error=<%s> | chat template rejects the probe messages", error)
        return unknown
    if list(tokenizer.encode(here, add_special_tokens=False)) == theirs:
        return passed("renders a conversation as the server's does")
    there = str(tokenizer.decode(theirs))
    return warned(
        f"differs from the server's: {first_difference(there, here)}",
        "episodes use the template here. If the server has the right one, use the tokenizer of the served model or "
        "pass its template as chat_template=; if yours is right, start the server with --chat-template",
        log=f"server=<{facts.url}>, here=<{here!r:.120}>, there=<{there!r:.120}> | chat template differs from the "
        "server's; episodes use the template of the tokenizer. if that is not intended, use the tokenizer of the "
        "served model or pass chat_template=",
    )


async def soundness(setup: Setup) -> Finding:
    """Check for which steps messages can be appended exactly, and whether tools reach the model."""
    try:
        bridge, sound = await setup.bridge()
    except StrandsSGLangError as error:
        return failed(error, "pass a chat template as chat_template=, as Jinja source text")
    tools = await setup.tools()
    written = bridge.template.writes_calls
    if not written:
        found = "the template refuses or drops tool calls"
        if tools:
            return failed(f"{found}, and the agent has {counted(len(tools), 'tool')}", _NO_TOOLS)
        if tools is None:
            return warned(found, f"if your agent has tools: {_NO_TOOLS}")
    elif not bridge.template.writes_tools and tools != []:
        is_allowed = setup.options.get("on_hidden_tools") == "allow" or bridge.template.hides_tools
        report = failed if tools and not is_allowed else warned
        return report(
            "the template writes tool calls, but not the available tools: the model does not see them",
            "pass a template that writes them as chat_template=; if the system prompt describes the tools, or the "
            "model was trained for exactly these, pass on_hidden_tools='allow'",
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


async def parser(setup: Setup) -> Finding:
    """Check that a tool parser reads the calls that the chat template writes."""
    bridge, _ = await setup.require_bridge()
    chosen = setup.options.get("tool_parser", "auto")
    tools = await setup.tools()
    detected = await asyncio.to_thread(detect_tool_parser, bridge)
    try:
        used = resolve_tool_parser(chosen, bridge)
    except StrandsSGLangError as error:
        return failed(error, "pass a name that exists, or leave tool_parser out: it is detected from the template")
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


async def agent(setup: Setup) -> Finding:
    """Build the agent and render its first prompt."""
    if setup.build is None:
        return skipped("no agent was given")
    await setup.require_bridge()
    try:
        made, model = await setup.agent()
    except Exception as error:
        return failed(
            f"build raised {type(error).__name__}: {error!s:.300}",
            "build(task, model) must return a Strands agent, a graph, a swarm, or a function without arguments",
        )
    tools = await setup.tools()
    if tools is None:
        return passed(f"built a {type(made).__name__}, whose prompts are not known before it runs")
    if getattr(made, "model", model) is not model:
        return failed(
            "the agent does not use the model that it was given: its tokens would not be recorded",
            "pass the model on: Agent(model=model, ...)",
        )
    tokens = await asyncio.to_thread(_first_prompt, setup, made, model, tools)
    if isinstance(tokens, Finding):
        return tokens
    facts = await setup.require_server()
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


def _first_prompt(setup: Setup, made: Any, model: Any, tools: list[Any]) -> int | Finding:
    bridge = model.planner.bridge
    given = getattr(made, "system_prompt", None)
    system = given if given is None or isinstance(given, str) else template_system(None, given)
    prompt = setup.task.prompt
    text = prompt if isinstance(prompt, str) else "\n".join(str(block.get("text", "")) for block in prompt)
    messages = [*([{"role": "system", "content": system}] if system is not None else ())]
    messages.append({"role": "user", "content": text})
    try:
        rendered = bridge.template.render(messages, tools=template_tools(tools))
    except TemplateRefusedError as error:
        return failed(f"the chat template refuses the first prompt: {error.template_message}", _NO_TOOLS)
    return len(bridge.encoder.encode(rendered.text, rendered.escapes))
