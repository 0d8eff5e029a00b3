"""The formats that write calls as one JSON list, for the tests they share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.parsed import ParseFailure, ToolCall
from strands_sglang.tool_parsers.phi4 import Phi4ToolParser
from support.tool_parsers.checks import Format, once, same

ONE = '{"name": "calculator", "arguments": {"expression": "12*7+3"}}'
NAMED = '[TOOL_CALLS]calculator[ARGS]{"expression": "12*7+3"}'
"""A call that Mistral writes by its name."""


def call_of(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


@dataclass(frozen=True)
class ListFormat(Format):
    """A format of lists."""

    opening: str
    closing: str
    tokens: tuple[str, ...]
    """The markers that are tokens of their own."""
    think: str = "<think>"
    thought: str = "</think>"

    def listed(self, *objects: str) -> str:
        return f"{self.opening}[{', '.join(objects)}]{self.closing}"

    @cached_property
    def call(self) -> str:
        return self.listed(ONE)

    @cached_property
    def words(self) -> Mapping[str, str]:
        return {
            "OPENING": self.opening,
            "CLOSING": self.closing,
            "THINK": self.think,
            "THOUGHT": self.thought,
            "ONE": ONE,
            "CALL": self.call,
            "NAMED": NAMED,
            "CUT_OPENING": self.opening[:-1],
            "CUT_CLOSING": self.closing[:-1],
        }

    def turns(self, arguments: dict[str, Any]) -> list[str]:
        """Return turns that are worth damaging."""
        return [f"{self.listed(call_of('f', arguments), ONE)}\n{self.call}"]

    def check_call(self, text: str, call: ToolCall) -> None:
        value = json.loads(call.raw, object_pairs_hook=once, parse_constant=pytest.fail)
        assert call.id is None
        self.check_value(value, call)

    def check_value(self, value: dict[str, Any], call: ToolCall) -> None:
        assert isinstance(value["arguments"], dict)
        assert same((value["name"], value["arguments"]), (call.name, call.arguments))

    def check_bad_object(self, raw: str, failure: ParseFailure) -> None:
        """Hold that a bad object fails alone."""
        text = self.fill(f"a\n{{OPENING}}[{{ONE}}, {raw} , {{ONE}}]{{CLOSING}}{{OPENING}}[{raw}]{{CLOSING}}")
        turn = self.parse(text)
        assert [(item.failure, item.raw) for item in turn.failures] == [(failure, raw), (failure, raw)]
        first = len(f"a\n{self.opening}[{ONE}, ")
        assert [item.start for item in turn.failures] == [first, text.rindex(raw)]
        assert [call.start for call in turn.calls] == [len(f"a\n{self.opening}["), first + len(f"{raw} , ")]
        assert turn.text == "a"

    def check_block(self, block: str, failure: ParseFailure) -> None:
        """Hold that a block has no call, and the others are read."""
        raw = self.fill(block)
        assert self.found(f"a\n{raw}") == ([], [(failure, raw)], "a")
        assert self.found(f"a\n{self.call}{raw}{self.call}") == (["calculator", "calculator"], [(failure, raw)], "a")

    def check_detail(self, text: str, detail: str, name: str | None) -> None:
        """Hold that a detail says what is wrong and where."""
        failure = self.failed(self.fill(text))
        assert self.fill(detail) in failure.detail and failure.name == name


class Phi4Format(ListFormat):
    """Lists that may also stand behind the word functools."""

    def turns(self, arguments: dict[str, Any]) -> list[str]:
        rest = f"[{call_of('f', arguments)}, {ONE}]{self.closing}\n{self.call}"
        return [f"{self.opening}{rest}", f"functools{rest}"]


class MistralFormat(ListFormat):
    """Lists whose calls may have ids, or calls by name."""

    def turns(self, arguments: dict[str, Any]) -> list[str]:
        named = f"{NAMED}[TOOL_CALLS]f[CALL_ID]x[ARGS]{json.dumps(arguments)}{NAMED}"
        return [f"{self.listed(call_of('f', arguments), ONE)}{NAMED}", named]

    def check_call(self, text: str, call: ToolCall) -> None:
        pattern = r"\[TOOL_CALLS\]([^][{}]+)(?:\[CALL_ID\]([^][{}]+))?\[ARGS\](.*)"
        if match := re.fullmatch(pattern, call.raw, re.DOTALL):
            value = {"name": match[1], "id": match[2], "arguments": json.loads(match[3], object_pairs_hook=once)}
        else:
            value = json.loads(call.raw, object_pairs_hook=once, parse_constant=pytest.fail)
            assert "id" not in value or value["id"].strip()
        assert call.id == value.get("id")
        self.check_value(value, call)


PHI4 = Phi4Format(
    name="phi4",
    parser=Phi4ToolParser(),
    opening="<|tool_call|>",
    closing="<|/tool_call|>",
    tokens=("<|tool_call|>", "<|/tool_call|>"),
)
NEMOTRON = ListFormat(
    name="nemotron",
    parser=NemotronToolParser(),
    opening="<TOOLCALL>",
    closing="</TOOLCALL>",
    tokens=("<TOOLCALL>", "</TOOLCALL>"),
)
MISTRAL = MistralFormat(
    name="mistral",
    parser=MistralToolParser(),
    opening="[TOOL_CALLS]",
    closing="",
    tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    think="[THINK]",
    thought="[/THINK]",
)
CLOSED_FORMATS = [PHI4, NEMOTRON]
"""Those with a marker behind a list."""
LIST_FORMATS = [*CLOSED_FORMATS, MISTRAL]
