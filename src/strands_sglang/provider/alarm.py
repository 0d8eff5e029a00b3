"""The alarm: a model that writes calls which its parser does not see, or that was not told of its tools.

With the wrong parser nothing fails: every call is text, every turn an answer, and the reward says that the policy does
not use its tools. So turns without a call are held against the other parsers that are known. Where the chat template
writes no tools, and the model calls none, it does not know them.

Invariant: only a warning comes of it. No call is ever taken from another parser.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import lru_cache

from strands_sglang.tool_parsers import ParsedTurn, ParseFailure, ToolParser
from strands_sglang.tool_parsers.base import Schemas
from strands_sglang.tool_parsers.registry import get_tool_parser, tool_parser_names

logger = logging.getLogger(__name__)

ALARM_AFTER = 10
"""Turns before the warning, unless the user chose another number."""


class ParserAlarm:
    """Watches the turns of one model."""

    def __init__(self, parser: ToolParser, *, tools_shown: bool = True) -> None:
        """Watch.

        Args:
            parser: The model's own.
            tools_shown: Whether the chat template writes the tools into the prompt.
        """
        self._parser = parser
        self._unknown: int | None = None if tools_shown else 0
        self._seen: Counter[str] = Counter()
        self._rung = False

    def look(self, text: str, parsed: ParsedTurn, schemas: Schemas, after: int | None = ALARM_AFTER) -> str | None:
        """Look at a turn.

        Args:
            text: The turn's words.
            parsed: What the model's own parser made of them.
            schemas: The tools on offer; text that calls none of them looks like no call.
            after: Turns before the warning; None: look at nothing.

        Returns:
            The parser that would have found calls; None when there is none, or no more need to look.
        """
        if parsed.calls or any(failed.failure is ParseFailure.SCHEMA for failed in parsed.failures):
            self._seen.clear()  # the parser reads this model's calls; what it leaves was not meant
            self._unknown = None
            return None
        if after is None or not schemas:
            return None
        if self._unknown is not None:
            self._unknown += 1
            if self._unknown >= after:
                self._unknown = None
                _say_unknown(after)
        if self._rung:
            return None
        # As letters: a marker that was spelled out is what the model's own parser would not take for one.
        rest = str(text[parsed.rest_start :])
        name = next((name for name in self._candidates(rest) if _calls(name, rest, schemas)), None)
        if name is None:
            return None
        self._seen[name] += 1
        if self._seen[name] >= after:
            self._rung = True
            self._ring(name)
        return name

    def _candidates(self, text: str) -> list[str]:
        """Return the parsers whose calls begin with something that is in the text."""
        begun = text.lstrip()[:1]
        found = []
        for name in tool_parser_names():
            markers = get_tool_parser(name).call_markers
            if any(marker == begun if len(marker) == 1 else marker in text for marker in markers):
                found.append(name)
        return found

    def _ring(self, name: str) -> None:
        if name == self._parser.name:
            logger.warning(
                "turns=<%d>, parser=<%s> | turns look like tool calls, but their markers were not sampled as the "
                "tokens the tokenizer has for them, so they are text; is this the tokenizer of the model served?",
                self._seen[name],
                name,
            )
        else:
            logger.warning(
                "turns=<%d>, parser=<%s>, would_parse=<%s> | turns look like tool calls and none was parsed; "
                "if the model means them, make it with tool_parser=%r",
                self._seen[name],
                self._parser.name,
                name,
                name,
            )


@lru_cache(maxsize=1)
def _say_unknown(turns: int) -> None:
    logger.warning(
        "turns=<%d> | the model has called no tool, and its chat template does not write the tools into the prompt: it "
        "cannot know them. describe them in the system prompt, or use a tokenizer whose template writes them",
        turns,
    )


def _calls(name: str, text: str, schemas: Schemas) -> bool:
    """Return whether a parser finds calls of tools on offer in a text."""
    try:
        calls = get_tool_parser(name).parse(text, schemas=schemas).calls
    except Exception as error:  # a user's own parser, which nobody asked about this text
        logger.debug("parser=<%s>, error=<%r> | a parser failed on a text", name, error)
        return False
    return any(call.name in schemas for call in calls)
