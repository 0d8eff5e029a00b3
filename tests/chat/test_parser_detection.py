"""Parser detection: for every family, from what the template writes for a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import strands_sglang.chat.parser_detection as parser_detection
from strands_sglang import SGLangModel, tool_parsers
from strands_sglang.chat.soundness import sound_bridge
from strands_sglang.errors import ConfigurationError
from strands_sglang.tool_parsers import HermesToolParser, SampledText, ToolCall, ToolParser, register_tool_parser
from support.families import FAMILIES, tokenizer
from support.provider.agents import agent_on, scripted_model

FOUND = {
    "deepseek-r1": "deepseek_v3",
    "deepseek-v3": "deepseek_v3",
    "deepseek-v3.1": "deepseek_v31",
    "deepseek-v3.2": "deepseek_v32",
    "deepseek-v4": "deepseek_v32",
    "devstral-2507": "mistral",
    "glm-4.5": "glm",
    "glm-4.6": "glm",
    "glm-4.7-flash": "glm",
    "gpt-oss": "harmony",
    "kimi-k2": "kimi_k2",
    "kimi-k2-thinking": "kimi_k2",
    "llama-3.1": "llama3_json",
    "llama-3.2": "llama3_json",
    "llama-3.3": "llama3_json",
    "minimax-m2": "minimax_m2",
    "ministral-3-reasoning": "mistral",
    "mistral-nemo": "mistral",
    "mistral-small-3.2": "mistral",
    "nemotron-3-nano": "qwen3_coder",
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "qwen3-coder": "qwen3_coder",
    "qwen3-instruct-2507": "hermes",
    "qwen3-thinking-2507": "hermes",
    "qwen3.5": "qwen3_coder",
    "qwen3.6": "qwen3_coder",
}
UNSURE = {
    "gemma-3": "Known: hermes, ",
    "smollm2": "Known: hermes, ",
    "smollm3": "Candidates: hermes, qwen3_coder, glm",
    "phi-4-mini": "Candidates: phi4",
}


def detected(family: str, **settings: Any) -> parser_detection.ParserDetection:
    return parser_detection.detect_tool_parser(sound_bridge(tokenizer(family), **settings)[0])


def test_every_family_is_listed() -> None:
    assert set(FOUND) | set(UNSURE) == set(FAMILIES)


@pytest.mark.parametrize(("family", "name"), sorted(FOUND.items()))
def test_parser_of_every_family_with_tools_is_detected(family: str, name: str) -> None:
    found = detected(family)
    assert found.parser is not None and found.parser.name == name and found.problem == ""


@pytest.mark.parametrize(("family", "candidates"), sorted(UNSURE.items()))
async def test_error_names_candidates_if_template_writes_no_calls(family: str, candidates: str) -> None:
    model, engine = scripted_model(["a"], family)
    with pytest.raises(ConfigurationError, match="'auto' cannot determine the format of tool calls") as raised:
        await agent_on(model).invoke_async("q")
    assert candidates in str(raised.value) and engine.calls == []


async def test_no_parser_is_needed_without_tools() -> None:
    model, _ = scripted_model(["<tool_call>{}</tool_call>"], "smollm2")
    agent = agent_on(model, tools=[])
    await agent.invoke_async("q")
    assert agent.messages[-1]["content"] == [{"text": "<tool_call>{}</tool_call>"}]
    assert model.tool_parser.name == "none"


def test_named_parser_is_used() -> None:
    model, _ = scripted_model([], "smollm2", tool_parser="hermes")
    assert isinstance(model.tool_parser, HermesToolParser)
    parser = HermesToolParser()
    model, _ = scripted_model([], "glm-4.5", tool_parser=parser)
    assert model.tool_parser is parser


def test_parser_of_custom_template_is_detected() -> None:
    found = detected("smollm2", chat_template=tokenizer("qwen2.5").chat_template)
    assert found.parser is not None and found.parser.name == "hermes"


UNKNOWN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}@{{ call.function.name }}|{{ call.function.arguments | tojson }}@"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class AtParser(ToolParser):
    """A custom format: `@name|{...}@`."""

    name = "at"
    call_markers = ("@",)

    def scan(self, text: SampledText, at: int, schemas: Any) -> Iterator[ToolCall]:
        import json
        import re

        for found in re.compile("@([^|@]+)[|]([^@]+)@").finditer(text, at):
            yield ToolCall(found[1], json.loads(found[2]), found[0], found.start())


@pytest.fixture
def at_parser() -> Iterator[type[ToolParser]]:
    yield register_tool_parser(AtParser)
    del tool_parsers._known["at"]


def test_error_shows_unknown_format() -> None:
    found = detected("qwen2.5", chat_template=UNKNOWN_TEMPLATE)
    assert found.parser is None and "@probe_tool|" in found.problem and "ToolParser" in found.problem


def test_registered_parser_is_detected(at_parser: type[ToolParser]) -> None:
    found = detected("qwen2.5", chat_template=UNKNOWN_TEMPLATE)
    assert isinstance(found.parser, at_parser)
    model = SGLangModel(tokenizer=tokenizer("qwen2.5"), base_url="http://127.0.0.1:1", tool_parser="at")
    assert isinstance(model.tool_parser, at_parser)


def test_ambiguous_parsers_are_named() -> None:
    class Twin(HermesToolParser):
        name = "twin"

    try:
        register_tool_parser(Twin)
        found = detected("qwen2.5")
        assert found.parser is None and "Candidates: hermes, twin" in found.problem
    finally:
        del tool_parsers._known["twin"]
    assert detected("qwen2.5").parser is not None


def test_invalid_registrations_are_refused() -> None:
    class Other(ToolParser):
        name = "hermes"

    for wrong in (Other, HermesToolParser(), str):
        with pytest.raises(ConfigurationError):
            register_tool_parser(wrong)  # type: ignore[type-var]
    assert register_tool_parser(HermesToolParser) is HermesToolParser


def test_template_that_writes_calls_only_with_tools() -> None:
    guarded = tokenizer("qwen2.5").chat_template.replace("message.tool_calls", "tools and message.tool_calls")
    assert guarded != tokenizer("qwen2.5").chat_template
    found = detected("qwen2.5", chat_template=guarded)
    assert found.parser is not None and found.parser.name == "hermes"


def test_redefined_class_replaces_the_old_one(at_parser: type[ToolParser]) -> None:
    assert isinstance(detected("qwen2.5", chat_template=UNKNOWN_TEMPLATE).parser, at_parser)
    again = type("AtParser", (AtParser,), {"__module__": AtParser.__module__, "__qualname__": AtParser.__qualname__})
    register_tool_parser(again)
    assert type(detected("qwen2.5", chat_template=UNKNOWN_TEMPLATE).parser) is again


def test_parser_none_has_a_name() -> None:
    model, _ = scripted_model([], "qwen2.5", tool_parser="none")
    assert model.tool_parser.name == "none"
