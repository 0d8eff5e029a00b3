"""The formats that write a section of calls, for the tests they share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strands_sglang.tool_parsers.deepseek import DeepSeekV3ToolParser, DeepSeekV31ToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.parsed import ParseFailure
from support.tool_parsers.checks import Format


@dataclass(frozen=True)
class SectionFormat(Format):
    """A format of sections."""

    begin: str
    end: str
    call_begin: str
    separator: str
    call_end: str
    head: str
    """What stands between the begin of a call and its JSON."""
    tail: str
    """What stands between the JSON of a call and its end."""
    bad_head: str
    inner_head: str
    """A head that fits into a JSON string as it is."""

    def call_of(self, name: str, arguments: Any) -> str:
        written = json.dumps(arguments, ensure_ascii=False)
        head = self.head.format(name=name)
        return f"{self.call_begin}{head}{written}{self.tail}{self.call_end}"

    def section(self, *calls: str) -> str:
        return f"{self.begin}{''.join(calls)}{self.end}"

    @cached_property
    def call(self) -> str:
        return self.call_of("calculator", {"expression": "12*7+3"})

    @cached_property
    def words(self) -> Mapping[str, str]:
        head = self.head.format(name="f")
        return {
            "BEGIN": self.begin,
            "END": self.end,
            "CALL_BEGIN": self.call_begin,
            "SEPARATOR": self.separator,
            "CALL_END": self.call_end,
            "HEAD": head,
            "TAIL": self.tail,
            "BAD_HEAD": self.bad_head,
            "OPEN": f"{self.call_begin}{head}{{}}{self.tail}",
            "HEADLESS": f"{head}{{}}{self.tail}{self.call_end}",
            "HEADLESS_REST": f"{head}{{}}{self.tail}{self.call_end}"[head.index(self.separator) :],
            "INNER": f"{self.call_begin}{self.inner_head}{{}}{self.call_end}",
            "CALL": self.call,
            "SECTION": self.section(self.call),
        }

    def check_bad_call(self, raw: str, failure: ParseFailure) -> None:
        """Hold that a malformed call is none, and the others are read."""
        turn = self.parse(self.fill(f"a{{BEGIN}}{{CALL}}{raw}\n{{CALL}}{{END}}b{{BEGIN}}{raw}{{END}}c"))
        raw = self.fill(raw)
        assert [item.failure for item in turn.failures] == [failure, failure]
        assert [item.raw for item in turn.failures] == [raw, raw]
        first = len(f"a{self.begin}{self.call}")
        second = first + len(f"{raw}\n{self.call}{self.end}b{self.begin}")
        assert [item.start for item in turn.failures] == [first, second]
        assert [call.name for call in turn.calls] == ["calculator", "calculator"]
        assert turn.text == "a\nb\nc"


DEEPSEEK_V3 = SectionFormat(
    parser=DeepSeekV3ToolParser(),
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    head="function<｜tool▁sep｜>{name}\n```json\n",
    tail="\n```",
    bad_head="f<｜tool▁sep｜>f\n```json\n",
    inner_head="calculator<｜tool▁sep｜>",
)
DEEPSEEK_V31 = SectionFormat(
    parser=DeepSeekV31ToolParser(),
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    head="{name}<｜tool▁sep｜>",
    tail="",
    bad_head=" <｜tool▁sep｜>",
    inner_head="calculator<｜tool▁sep｜>",
)
KIMI_K2 = SectionFormat(
    parser=KimiK2ToolParser(),
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    head="functions.{name}:0<|tool_call_argument_begin|>",
    tail="",
    bad_head="f<|tool_call_argument_begin|>",
    inner_head="functions.calculator:0<|tool_call_argument_begin|>",
)
SECTION_FORMATS = [DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2]
