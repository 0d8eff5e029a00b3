"""Converts a turn into content blocks and stream events of the framework, at once or while it is being sampled.

Invariants: the message that the framework builds from the events equals the predicted blocks, block for block, so that
the turn is found again by content. Emitted text is never withdrawn: text that may still become a marker, a call or part
of a character is held back until this is decided, and calls are emitted only when the turn is complete. As for the
parser, a marker is a token if the tokenizer has one for it, and otherwise its letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from strands_sglang.chat.failed_call import failed_tool_use
from strands_sglang.chat.tokenization import Encoder
from strands_sglang.tool_parsers import FailedCall, ParsedTurn, ToolCall, ToolParser

Block = dict[str, Any]
Event = dict[str, Any]

_MAX_FAILURES = 16
"""Malformed calls of a turn that get a block of their own: a broken model can write thousands of malformed calls."""


def calls_as_blocks(parsed: ParsedTurn) -> list[ToolCall | FailedCall]:
    """Return the calls and failed calls that become blocks, in the order of the text."""
    both: list[ToolCall | FailedCall] = [*parsed.calls, *parsed.failures[:_MAX_FAILURES]]
    return sorted(both, key=lambda call: call.start)


def blocks_of(
    parsed: ParsedTurn,
    calls: Sequence[ToolCall | FailedCall],
    call_ids: Sequence[str],
    *,
    truncated: bool,
    raw: str,
    ends: bool = False,
) -> list[Block]:
    """Return the content blocks of a turn.

    No call of a `truncated` turn is run: the framework would replace each call with a message of its own, and the
    conversation would differ from the tokens. The calls stay in the text (`raw`) as sampled.

    Reasoning, text and calls are returned in this order, none of them blank. Newlines before the text are removed, so
    that a live stream does not depend on later tokens.
    """
    blocks: list[Block] = []
    text = (raw if truncated and calls else parsed.text).lstrip("\n")
    for kind, shown in (("reasoning", parsed.reasoning or ""), ("text", text)):
        if shown.strip():
            blocks.append(_block(kind, shown))
    if truncated:
        return blocks
    more, last = len(parsed.failures) - _MAX_FAILURES, parsed.failures[:_MAX_FAILURES][-1:]
    for call, call_id in zip(calls, call_ids, strict=True):
        if isinstance(call, ToolCall):
            use = {"toolUseId": call_id, "name": call.name, "input": call.arguments}
        else:
            use = failed_tool_use(call, call_id, more=max(0, more) if (call,) == last else 0, ends=ends)
        blocks.append({"toolUse": use})
    return blocks


def block_events(block: Block) -> list[Event]:
    """Return the events of one block."""
    if "toolUse" not in block:
        # Without a start, as Bedrock's: each event passes through every turn of the SDK's loop before it.
        return [_delta(_kind(block), _text(block)), {"contentBlockStop": {}}]
    use = block["toolUse"]
    return [
        {"contentBlockStart": {"start": {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}}},
        {"contentBlockDelta": {"delta": {"toolUse": {"input": _encode(use["input"])}}}},
        {"contentBlockStop": {}},
    ]


def closing_events(stop_reason: str, usage: dict[str, int], metrics: dict[str, Any]) -> list[Event]:
    """Return the events that end a message."""
    return [{"messageStop": {"stopReason": stop_reason}}, {"metadata": {"usage": usage, "metrics": metrics}}]


_encode = json.JSONEncoder(ensure_ascii=False).encode


_CONTEXT = 8
"""Decoding starts this many tokens earlier, for tokenizers whose decoding depends on neighbouring tokens."""


class LiveText:
    """Decodes a turn while it is sampled, and returns the text that can be streamed."""

    def __init__(self, encoder: Encoder, parser: ToolParser, *, reasoning_open: bool) -> None:
        # Each sampled control token has a mark in the buffer, and so have the markers that are searched in it.
        self._decode, self._control = encoder.decode_marked, encoder.control
        self._opening, self._closing = map(self._control.marked, parser.reasoning_markers)
        self._stops = tuple(self._control.marked(marker) for marker in parser.call_markers if len(marker) > 1)
        self._first = tuple(marker for marker in parser.call_markers if len(marker) == 1)
        self._shows_text = parser.shows_text
        # Tokens that end a turn if they are its last token; then they are not emitted.
        self._ends = encoder.control.special
        self._ids: list[int] = []
        self._waiting: list[int] = []
        self._prefix = self._read = 0
        self._buffer = ""
        self._reasoning_open = reasoning_open
        self._stage: _Stage = _Stage.BEGINNING
        self._started = False
        self._emitted: dict[str, list[str]] = {"reasoning": [], "text": []}

    @property
    def reasoning(self) -> str:
        """Reasoning emitted so far."""
        return "".join(self._emitted["reasoning"])

    @property
    def text(self) -> str:
        """Text emitted so far."""
        return "".join(self._emitted["text"])

    def feed(self, ids: Iterable[int]) -> list[tuple[str, str]]:
        """Add new tokens; return what can be emitted now, as pairs of "reasoning" or "text" and the new piece."""
        for token in ids:
            self._ids += self._waiting
            self._waiting = [token]
        if self._waiting and self._waiting[0] not in self._ends:
            self._ids += self._waiting
            self._waiting = []
        before = self._decode(self._ids[self._prefix : self._read])
        now = self._decode(self._ids[self._prefix :])
        if before is None or now is None:
            # The turn contains characters that are used as marks: nothing more is emitted before it is complete.
            self._stage, self._buffer = _Stage.CALLS, ""
            return []
        if len(now) > len(before) and not now.endswith("\ufffd"):
            self._buffer += now[len(before) :]
            self._read = len(self._ids)
            self._prefix = max(0, self._read - _CONTEXT)
        pieces: list[tuple[str, str]] = []
        if self._stage is _Stage.BEGINNING:
            self._detect_reasoning()
        if self._stage is _Stage.REASONING:
            pieces += self._emit("reasoning", (self._closing,), blanks="\n")
        if self._stage is _Stage.TEXT and not self._emitted["text"]:
            if not self._shows_text or self._buffer.lstrip().startswith(self._first):
                self._stage = _Stage.CALLS
        if self._stage is _Stage.TEXT:
            pieces += self._emit("text", self._stops, blanks=None)
        return pieces

    def _detect_reasoning(self) -> None:
        start_of_turn = self._buffer.lstrip()
        if start_of_turn.startswith(self._opening):
            # Also if the prompt opened it: some models open it once more.
            self._buffer = start_of_turn[len(self._opening) :]
            self._stage = _Stage.REASONING
        elif start_of_turn and not self._opening.startswith(start_of_turn):
            self._stage = _Stage.REASONING if self._reasoning_open else _Stage.TEXT

    def _emit(self, kind: str, markers: tuple[str, ...], blanks: str | None) -> list[tuple[str, str]]:
        """Only text that is not emitted stays in the buffer, so the cost of a piece does not grow with the turn."""
        if not self._started:
            self._buffer = self._buffer.lstrip("\n")
        found = [(at, marker) for marker in markers if (at := self._buffer.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            piece = self._buffer[:at].rstrip(blanks)
            self._buffer = self._buffer[at + len(marker) :] if kind == "reasoning" else ""
            self._stage, self._started = (_Stage.TEXT, False) if kind == "reasoning" else (_Stage.CALLS, True)
        else:
            held = max((_overlap(self._buffer, marker) for marker in markers), default=0)
            piece = self._buffer[: len(self._buffer) - held].rstrip(blanks)
            if not self._emitted[kind] and not piece.strip():
                return []
            self._buffer = self._buffer[len(piece) :]
            self._started = self._started or bool(piece)
        if not piece or (not piece.strip() and not self._emitted[kind]):
            return []
        piece, _ = self._control.unmarked(piece)
        self._emitted[kind].append(piece)
        return [(kind, piece)]


class _Stage(Enum):
    BEGINNING = "beginning"
    REASONING = "reasoning"
    TEXT = "text"
    CALLS = "calls"


class LiveEvents:
    """The events of a turn that is streamed while it is sampled."""

    def __init__(self, text: LiveText) -> None:
        self._live = text
        self._open: str | None = None

    @property
    def started(self) -> bool:
        """Whether anything was emitted."""
        return self._open is not None

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """Add new tokens; return the events that can be emitted now."""
        events: list[Event] = []
        for kind, piece in self._live.feed(ids):
            events += [*self._opened(kind), _delta(kind, piece)]
        return events

    def reconcile(self, blocks: list[Block]) -> list[Block]:
        """Return a turn's blocks, changed where needed so that they start with what was emitted."""
        found = {_kind(block): block for block in blocks if "toolUse" not in block}
        reconciled: list[Block] = []
        for kind, emitted in (("reasoning", self._live.reasoning), ("text", self._live.text)):
            text = _text(found[kind]) if kind in found else ""
            if not text.startswith(emitted) or (kind == "reasoning" and self._open == "text"):
                text = emitted
            if text:
                reconciled.append(_block(kind, text))
        return reconciled + [block for block in blocks if "toolUse" in block]

    def finish(self, blocks: list[Block]) -> list[Event]:
        """Return the events of everything in the reconciled blocks that was not emitted yet."""
        texts = [block for block in blocks if "toolUse" not in block]
        events: list[Event] = []
        for kind, text in ((_kind(block), _text(block)) for block in texts):
            if rest := text[len(getattr(self._live, kind)) :]:
                events += [*self._opened(kind), _delta(kind, rest)]
        if self._open is not None:
            events.append({"contentBlockStop": {}})
        # Calls come last.
        return [*events, *(event for block in blocks[len(texts) :] for event in block_events(block))]

    def _opened(self, kind: str) -> list[Event]:
        if self._open == kind:
            return []
        events: list[Event] = [{"contentBlockStop": {}}] if self._open is not None else []
        self._open = kind
        return events


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
    """Return the length of the longest start of a marker that the text ends with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
