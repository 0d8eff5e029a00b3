"""No format at all: reasoning and text, and nothing in it is a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from strands_sglang.tool_parsers.base import Schemas, ToolParser
from strands_sglang.tool_parsers.parsed import FailedCall, ToolCall
from strands_sglang.tool_parsers.sampled import SampledText


class PlainTextParser(ToolParser):
    """For models that have no tools."""

    name: ClassVar[str] = "none"

    @override
    def scan(self, text: SampledText, at: int, schemas: Schemas) -> Iterator[ToolCall | FailedCall]:
        """Yield nothing."""
        return iter(())
