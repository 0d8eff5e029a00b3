"""The formats that write calls as one JSON list, for the tests they share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.nemotron import NemotronToolParser
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.phi4 import Phi4ToolParser
from support.tool_parsers.checks import Format

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
            "ONE": ONE,
            "CALL": self.call,
            "CUT_CLOSING": self.closing[:-1],
        }

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


PHI4 = ListFormat(parser=Phi4ToolParser(), opening="<|tool_call|>", closing="<|/tool_call|>")
NEMOTRON = ListFormat(parser=NemotronToolParser(), opening="<TOOLCALL>", closing="</TOOLCALL>")
MISTRAL = ListFormat(parser=MistralToolParser(), opening="[TOOL_CALLS]", closing="")
CLOSED_FORMATS = [PHI4, NEMOTRON]
"""Those with a marker behind a list."""
LIST_FORMATS = [*CLOSED_FORMATS, MISTRAL]
