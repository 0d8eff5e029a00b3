"""What a parser finds in one sampled turn: `ParsedTurn`, made of reasoning, text, calls and failed calls.

Invariant: `raw` of a call is exactly `text[start : start + len(raw)]` of the parsed text, and calls and failures
never overlap. Nothing here was repaired: `arguments` is what the model wrote, or there is no call.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias


class ParseFailure(str, Enum):
    """Why something that began as a tool call is none."""

    INVALID_JSON = "invalid_json"
    """Not JSON, or JSON that cannot be used as it stands (NaN, endless numbers, half a character, too deep)."""
    INVALID_LITERAL = "invalid_literal"
    """The same for formats that write values in another language than JSON."""
    DUPLICATE_KEY = "duplicate_key"
    """A key stands twice in one object, at any depth: which of the two was meant is a guess."""
    NOT_AN_OBJECT = "not_an_object"
    """Good JSON, but a list, a string, a number, true, false or null where the call should be."""
    MISSING_NAME = "missing_name"
    """The name of the tool is absent, blank or not a string."""
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments are absent or anything but an object."""
    TRAILING_TEXT = "trailing_text"
    """Something stands between the call and its closing marker."""
    UNCLOSED = "unclosed"
    """The closing marker never came, or another call began before it: most often the turn was cut."""
    MISPLACED = "misplaced"
    """Part of a call stands where no call can: without the marker that opens one, or on a channel that has none."""
    SCHEMA = "schema"
    """A well-formed call whose arguments do not follow the tool's schema; only where the user asked to check that."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call, ready to be executed."""

    name: str
    """The tool, as the model wrote it; whether such a tool exists is not the parser's question."""
    arguments: dict[str, Any]
    """The arguments, decoded; `{}` only when the model wrote an empty object."""
    raw: str
    """The exact text of the call, markers included."""
    start: int
    """Where `raw` begins in the parsed text, in characters."""
    id: str | None = None
    """The call id the model itself wrote; None when its format has none."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Text that began as a call and is none: to be counted and answered, never executed."""

    raw: str
    """The exact text, from the opening marker to the closing one, or to the end of the turn when there is none."""
    start: int
    """Where `raw` begins in the parsed text, in characters."""
    failure: ParseFailure
    """What is wrong, for counting."""
    detail: str
    """What is wrong and where, in a sentence for the model; always encodable as UTF-8."""
    name: str | None = None
    """The tool that was meant; None when that cannot be told for certain."""


class Frame(NamedTuple):
    """A piece of a frame."""

    raw: str
    """The exact text."""
    start: int
    """Where it begins in the parsed text, in characters."""


Found: TypeAlias = ToolCall | FailedCall | Frame
"""Whatever is taken out of the text that the reader sees."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One sampled turn, taken apart."""

    reasoning: str | None
    """The reasoning, newlines around it taken off; None when there is no reasoning block, "" when it is empty."""
    text: str
    """What remains for the reader: reasoning, calls and failed calls taken out."""
    calls: tuple[ToolCall, ...] = ()
    """The well-formed calls, in the order of the text."""
    failures: tuple[FailedCall, ...] = ()
    """The failed calls, in the order of the text."""
    reasoning_closed: bool = True
    """False: reasoning was opened and never closed, so everything behind that is reasoning, and no call is in it."""
    rest_start: int = 0
    """Where the turn goes on behind its reasoning, in characters of the parsed text."""
