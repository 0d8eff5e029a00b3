"""Live text: what can be shown of a turn while it is being sampled.

Invariant: what was shown is never taken back. Anything that may still turn out to be a marker, a call or half a
character is held back until that is known; calls are never shown before the turn is whole. What is a marker is what the
parser takes for one: a token where the tokenizer has one, letters elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from strands_sglang.chat.encoder import Encoder
from strands_sglang.provider.blocks import Block, Event, block_events
from strands_sglang.tool_parsers import ToolParser

# Decoding begins this many tokens back, so that tokenizers that look at neighbours see some.
_CONTEXT = 8


class LiveText:
    """Follows a turn as its tokens come."""

    def __init__(self, encoder: Encoder, parser: ToolParser, *, reasoning_open: bool) -> None:
        """Follow a turn.

        Args:
            encoder: From token ids to text.
            parser: Knows the markers.
            reasoning_open: Whether the prompt opened a reasoning block.
        """
        # The buffer has a mark for each control token that was sampled, and so have the markers looked for in it.
        self._decode, self._control = encoder.decode_marked, encoder.control
        self._opening, self._closing = map(self._control.marked, parser.reasoning_markers)
        self._stops = tuple(self._control.marked(marker) for marker in parser.call_markers if len(marker) > 1)
        self._first = tuple(marker for marker in parser.call_markers if len(marker) == 1)
        self._shows_text = parser.shows_text
        # Tokens that end a turn when they come last; then they are not shown.
        self._ends = encoder.control.special
        self._ids: list[int] = []
        self._waiting: list[int] = []
        self._prefix = self._read = 0
        self._buffer = ""
        self._reasoning_open = reasoning_open
        self._stage: _Stage = _Stage.BEGINNING
        self._begun = False
        self._shown: dict[str, list[str]] = {"reasoning": [], "text": []}

    @property
    def reasoning(self) -> str:
        """Reasoning shown so far."""
        return "".join(self._shown["reasoning"])

    @property
    def text(self) -> str:
        """Text shown so far."""
        return "".join(self._shown["text"])

    def feed(self, ids: Iterable[int]) -> list[tuple[str, str]]:
        """Take new tokens; return what can be shown now, as pairs of "reasoning" or "text" and the new piece."""
        for token in ids:
            self._ids += self._waiting
            self._waiting = [token]
        if self._waiting and self._waiting[0] not in self._ends:
            self._ids += self._waiting
            self._waiting = []
        before = self._decode(self._ids[self._prefix : self._read])
        now = self._decode(self._ids[self._prefix :])
        if before is None or now is None:
            # The turn holds characters that are used as marks: nothing more is shown before it is whole.
            self._stage, self._buffer = _Stage.CALLS, ""
            return []
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._buffer += now[len(before) :]
            self._read = len(self._ids)
            self._prefix = max(0, self._read - _CONTEXT)
        shown: list[tuple[str, str]] = []
        if self._stage is _Stage.BEGINNING:
            self._decide()
        if self._stage is _Stage.REASONING:
            shown += self._show("reasoning", (self._closing,), blanks="\n")
        if self._stage is _Stage.TEXT and not self._shown["text"]:
            if not self._shows_text or self._buffer.lstrip().startswith(self._first):
                self._stage = _Stage.CALLS
        if self._stage is _Stage.TEXT:
            shown += self._show("text", self._stops, blanks=None)
        return shown

    def _decide(self) -> None:
        """Find out whether the turn begins with reasoning."""
        begun = self._buffer.lstrip()
        if begun.startswith(self._opening):
            # Also where the prompt has opened it: some models open it once more.
            self._buffer = begun[len(self._opening) :]
            self._stage = _Stage.REASONING
        elif begun and not self._opening.startswith(begun):
            self._stage = _Stage.REASONING if self._reasoning_open else _Stage.TEXT

    def _show(self, kind: str, markers: tuple[str, ...], blanks: str | None) -> list[tuple[str, str]]:
        """Show what the buffer has before a marker, or before what may be the beginning of one.

        Only what is not shown stays in the buffer, so the cost of a piece is that of the piece.
        """
        if not self._begun:
            self._buffer = self._buffer.lstrip("\n")
        found = [(at, marker) for marker in markers if (at := self._buffer.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            piece = self._buffer[:at].rstrip(blanks)
            self._buffer = self._buffer[at + len(marker) :] if kind == "reasoning" else ""
            self._stage, self._begun = (_Stage.TEXT, False) if kind == "reasoning" else (_Stage.CALLS, True)
        else:
            held = max((_overlap(self._buffer, marker) for marker in markers), default=0)
            piece = self._buffer[: len(self._buffer) - held].rstrip(blanks)
            if not self._shown[kind] and not piece.strip():
                return []
            self._buffer = self._buffer[len(piece) :]
            self._begun = self._begun or bool(piece)
        if not piece or (not piece.strip() and not self._shown[kind]):
            return []
        piece, _ = self._control.unmarked(piece)
        self._shown[kind].append(piece)
        return [(kind, piece)]


class _Stage(Enum):
    """Where in a turn its live text is."""

    BEGINNING = "beginning"
    REASONING = "reasoning"
    TEXT = "text"
    CALLS = "calls"


class LiveEvents:
    """The events of a turn that is shown while it is sampled."""

    def __init__(self, text: LiveText) -> None:
        self._live = text
        self._open: str | None = None

    @property
    def shown(self) -> bool:
        """Whether anything was shown."""
        return self._open is not None

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """Take new tokens; return the events they allow."""
        events: list[Event] = []
        for kind, piece in self._live.feed(ids):
            events += self._opened(kind)
            events.append(_delta(kind, piece))
        return events

    def settled(self, blocks: list[Block]) -> list[Block]:
        """Return a turn's blocks so that they go on from what was shown."""
        found = {_kind(block): block for block in blocks if "toolUse" not in block}
        settled: list[Block] = []
        for kind, shown in (("reasoning", self._live.reasoning), ("text", self._live.text)):
            text = _text(found[kind]) if kind in found else ""
            if not text.startswith(shown) or (kind == "reasoning" and self._open == "text"):
                text = shown
            if text:
                settled.append(_block(kind, text))
        return settled + [block for block in blocks if "toolUse" in block]

    def finish(self, blocks: list[Block]) -> list[Event]:
        """Return the events of everything in the settled blocks that was not shown."""
        events: list[Event] = []
        for block in blocks:
            if "toolUse" in block:
                continue
            kind = _kind(block)
            rest = _text(block)[len(getattr(self._live, kind)) :]
            if rest:
                events += self._opened(kind)
                events.append(_delta(kind, rest))
        if self._open is not None:
            events.append({"contentBlockStop": {}})
        for block in blocks:
            if "toolUse" in block:
                events += block_events(block)
        return events

    def _opened(self, kind: str) -> list[Event]:
        if self._open == kind:
            return []
        events: list[Event] = [{"contentBlockStop": {}}] if self._open is not None else []
        self._open = kind
        return [*events, {"contentBlockStart": {"start": {}}}]


def _kind(block: Block) -> str:
    return "text" if "text" in block else "reasoning"


def _text(block: Block) -> str:
    return str(block["text"] if "text" in block else block["reasoningContent"]["reasoningText"]["text"])


def _block(kind: str, text: str) -> Block:
    return {"text": text} if kind == "text" else {"reasoningContent": {"reasoningText": {"text": text}}}


def _delta(kind: str, piece: str) -> Event:
    delta = {"text": piece} if kind == "text" else {"reasoningContent": {"text": piece}}
    return {"contentBlockDelta": {"delta": delta}}


def _overlap(text: str, marker: str) -> int:
    """Return how much of a marker's beginning the text ends with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
