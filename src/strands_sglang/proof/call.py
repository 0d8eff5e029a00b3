"""Decoding and checks of call events: `CallFacts`, `PartialCalls`, `RequestIds`.

Invariants: decoded facts have the types given in docs/ledger.md; ids, logprobs and version spans have the same length
and spans have no gaps. Whether a call follows from earlier turns is checked in `proof.episode`. A turn that continues a
partial call begins with the partial call's tokens, logprobs and weight versions, unless it declares them discarded.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.event import Event
from strands_sglang.proof.finding import Finding, FindingKind

MAX_LOGPROB = 1e-3
"""Largest logprob that is accepted. Engines subtract 32-bit floats; for values in the thousands, rounding can push a
logprob above 0 by this much."""

PURPOSES = ("episode", "side", "constrained")

_COMPARABLE = (0.0, 1.0)
"""Temperatures at which the logprob over the vocabulary does not depend on how the engine is started. Engines report it
after temperature, or before it (SGLANG_RETURN_ORIGINAL_LOGPROB), and do not say which; the logprob over a kept set is
always after it. At temperature 0 the engine samples greedily and reports logprobs of temperature 1."""
_HALF_PRECISION = 2.0**-8
"""Relative rounding of logprobs that an engine computes as bfloat16 (--rl-on-policy-target)."""

_JOINS_OF_ROOT = ("root", "forked")
_JOINS_OF_CHILD = ("proved", "kept", "forked")


class ImageFacts(NamedTuple):
    """One image, decoded from a call event."""

    start: int
    """Offset of its first placeholder token in the context of its turn."""
    positions: int
    digest: str
    """SHA-256 of the file that was sent, 64 hex digits."""
    grid: tuple[int, int, int]
    """Patches in time, height and width."""


class KeptFacts(NamedTuple):
    """The kept sets of some tokens, decoded."""

    token_ids: npt.NDArray[np.int32]
    """The ids of all sets, one after the other."""
    offsets: npt.NDArray[np.int32]
    """Where each set begins, and where the last one ends."""
    logprobs: npt.NDArray[np.float64]

    def problem(
        self, sampled: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float64], temperature: Any = None
    ) -> tuple[int, str] | None:
        """Return the first token whose set contradicts it and why, or None if there is none.

        Args:
            sampled: The sampled tokens.
            logprobs: Their logprobs over the whole vocabulary.
            temperature: Temperature of sampling. Both logprobs are compared only if it is 0 or 1.
        """
        sizes = np.diff(self.offsets)
        owner = np.repeat(np.arange(len(sampled)), sizes)
        if len(self.token_ids) and self.token_ids.min() < 0:
            at = int(self.token_ids.argmin())
            return int(owner[at]), f"its kept set has {self.token_ids[at]}, which is not a token id"
        inside = np.zeros(len(sampled), bool)
        inside[owner[self.token_ids == sampled[owner]]] = True
        if not inside.all():
            at = int(inside.argmin())
            return at, f"token {sampled[at]} is not in its kept set of {sizes[at]}"
        repeated = _first_repeated(self.token_ids, owner)
        if repeated is not None:
            return repeated, "a kept set has a token twice"
        valid = np.isfinite(self.logprobs) & (self.logprobs <= MAX_LOGPROB)
        if not valid.all():
            at = int(valid.argmin())
            return at, f"{self.logprobs[at]} is not a logprob"
        # A set is a part of the vocabulary: scaled up to add to 1, no probability in it gets smaller.
        smaller = self.logprobs < logprobs - MAX_LOGPROB + _HALF_PRECISION * np.minimum(logprobs, 0.0)
        if temperature in _COMPARABLE and smaller.any():
            at = int(smaller.argmax())
            return at, f"its logprob over the set, {self.logprobs[at]}, is below that over everything, {logprobs[at]}"
        alone = (sizes == 1) & (np.abs(self.logprobs) > MAX_LOGPROB)
        if alone.any():
            at = int(alone.argmax())
            return at, f"it is alone in its kept set, and its logprob there is {self.logprobs[at]}, not 0"
        return None


@dataclass(slots=True, eq=False)
class CallFacts:
    """One turn, decoded from its call event."""

    turn: int
    parent: int | None
    """Id of the turn it continues; None for the first turn of a branch."""
    start: int
    """Position of its first token within the branch."""
    purpose: str
    """Purpose it was sampled for, one of `PURPOSES`."""
    join: str
    referenced_turns: tuple[int, ...]
    """Ids of other turns it refers to: the turn it was forked from, and its caller."""
    prompt_digest: str
    prompt_tokens: int
    detail: Mapping[str, Any]
    closing: npt.NDArray[np.int32]
    context: npt.NDArray[np.int32]
    sampled: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float64]
    spans: tuple[tuple[str | None, int], ...]
    """Weight versions with the number of sampled tokens of each, in order."""
    images: tuple[ImageFacts, ...] = ()
    """Images in `context`, in order."""
    kept: KeptFacts | None = None
    """Kept sets of top-p, top-k and min-p; None if not recorded."""

    @property
    def first(self) -> int:
        """Position of its first sampled token within the branch."""
        return self.start + len(self.closing) + len(self.context)

    @property
    def end(self) -> int:
        """Position after its last token within the branch."""
        return self.first + len(self.sampled)

    def adapter_error(self) -> str | None:
        """Return how the weight versions contradict the LoRA adapter that was asked for, or None if they do not."""
        named = [adapter_in(version) for version, _ in self.spans]
        asked = self.detail.get("adapter")
        if named and named[-1] != asked:
            return f"the last request named adapter {asked!r:.90}, but the version of its tokens has {named[-1]!r:.90}"
        if len(set(named)) > 1 and not self.detail.get("continuations"):
            return f"its tokens are of adapters {named!r:.200}, but one request sampled them"
        return None

    def join_error(self) -> str | None:
        """Return why `join` is not possible for this turn, or None if it is."""
        if self.join not in (_JOINS_OF_ROOT if self.parent is None else _JOINS_OF_CHILD):
            where = "without a parent turn" if self.parent is None else "with a parent turn"
            return f"join {self.join!r:.50} is not possible {where}"
        if self.parent is None and len(self.closing):
            return f"{len(self.closing)} closing tokens, but there is no parent turn to close"
        return None

    def invalid_token(self) -> tuple[int, str] | None:
        """Return the position of the first invalid token id or logprob and the reason, or None if all are valid."""
        for at, values in (
            (self.start, self.closing),
            (self.start + len(self.closing), self.context),
            (self.first, self.sampled),
        ):
            if len(values) and values.min() < 0:
                where = int((values < 0).argmax())
                return at + where, f"{values[where]} is not a token id"
        valid = np.isfinite(self.logprobs) & (self.logprobs <= MAX_LOGPROB)
        if not valid.all():
            where = int(valid.argmin())
            return self.first + where, f"{self.logprobs[where]} is not a logprob"
        if self.kept is None:
            return None
        problem = self.kept.problem(self.sampled, self.logprobs, self.detail.get("temperature"))
        return None if problem is None else (self.first + problem[0], problem[1])


def adapter_in(version: str | None) -> str | None:
    """Return the LoRA adapter that a weight version has; None: the base weights, or unknown."""
    return None if version is None else version.partition("+lora:")[2] or None


def read_call(event: Event) -> CallFacts:
    """Decode a call event.

    Raises:
        LedgerError: The event does not have the format of a call event.
    """
    data = event.data
    caller: Any = data.get("caller")
    if caller is not None and not (
        isinstance(caller, list) and len(caller) == 2 and isinstance(caller[1], str | None) and _is_count(caller[0])
    ):
        raise LedgerError(f"caller must be null or [turn id, tool call id or null], got {caller!r:.100}")
    forked_from = _optional_count(data, "forked_from")
    sampled, logprobs = _array(event, "sampled", "i"), _array(event, "logprobs", "d")
    if len(logprobs) != len(sampled):
        raise LedgerError(f"{len(sampled)} sampled tokens but {len(logprobs)} logprobs")
    within = data.get("within")
    if not isinstance(within, list) or not all(isinstance(call, str) for call in within):
        raise LedgerError(f"within must be a list of tool call ids, got {within!r:.100}")
    _count(data, "requests")
    facts = CallFacts(
        turn=_count(data, "turn"),
        parent=_optional_count(data, "parent"),
        start=_count(data, "start"),
        purpose=_text(data, "purpose"),
        join=_text(data, "join"),
        referenced_turns=tuple(id for id in (forked_from, None if caller is None else caller[0]) if id is not None),
        prompt_digest=_text(data, "prompt_digest"),
        prompt_tokens=_count(data, "prompt_tokens"),
        detail=data["detail"] if isinstance(data.get("detail"), dict) else {},
        closing=_array(event, "closing", "i"),
        context=_array(event, "context", "i"),
        sampled=sampled,
        logprobs=logprobs,
        spans=_version_spans(data.get("versions"), len(sampled)),
    )
    if "kept" in event.arrays:
        facts.kept = _read_kept(event, len(sampled))
    if "images" in data:
        facts.images = read_images(data["images"], facts.context)
    if facts.purpose not in PURPOSES:
        raise LedgerError(f"purpose must be one of {', '.join(PURPOSES)}, got {facts.purpose!r:.50}")
    temperature = facts.detail.get("temperature")
    if temperature is not None and not (type(temperature) in (int, float) and temperature >= 0.0):
        raise LedgerError(f"detail.temperature must be a number >= 0, got {temperature!r:.50}")
    adapter = facts.detail.get("adapter")
    if adapter is not None and not isinstance(adapter, str):
        raise LedgerError(f"detail.adapter must be a string, got {adapter!r:.50}")
    _text(data, "finish_reason")
    _check_experts(event, facts.end)
    return facts


class PartialCalls:
    """Partial calls of one episode, matched with the calls that continue them.

    A partial call records what was sampled of a turn when its episode was paused.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], list[tuple[int, CallFacts]]] = {}
        self._unmatched: dict[tuple[str, ...], list[CallFacts]] = {}

    def add(self, event: Event) -> str | None:
        """Add a partial call; return its first invalid value, or None if all values are valid.

        Raises:
            LedgerError: The event does not have the format of a partial call.
        """
        partial = _read_partial(event)
        if not len(partial.sampled):
            raise LedgerError("a partial call must have at least one sampled token")
        self.continue_with(event, partial)
        self._open.setdefault(_request_key(event), []).append((event.epoch, partial))
        invalid = partial.invalid_token()
        return None if invalid is None else invalid[1]

    def continue_with(self, event: Event, turn: CallFacts) -> None:
        """Match a call, or a longer partial call, with the open partial call that it continues."""
        key = _request_key(event)
        candidates = self._open.get(key, [])
        discarded = turn.detail.get("discarded_tokens")
        for number, (epoch, partial) in enumerate(candidates):
            if _starts_with(turn, partial) or (
                epoch < event.epoch and isinstance(discarded, int) and discarded >= len(partial.sampled)
            ):
                del candidates[number]
                return
        # In the process that wrote the partial call, another call with the same prompt may have completed. In a later
        # process, this may be a call of another conversation; the partial call is then continued before the end.
        if any(epoch < event.epoch for epoch, _ in candidates):
            self._unmatched.setdefault(key, []).append(turn)

    def errors(self) -> list[tuple[int, str]]:
        """Return, at the end of the episode, each turn that does not begin with its partial call, and why."""
        found = []
        for key, turns in self._unmatched.items():
            candidates = self._open.get(key, [])
            for turn, (_, partial) in zip(turns, candidates, strict=False):
                count = len(partial.sampled)
                found.append((turn.turn, f"the turn does not begin with the {count} tokens of its partial call"))
        return found

    def clear(self) -> None:
        """Forget all partial calls: called on a rollback."""
        self._open.clear()
        self._unmatched.clear()


class RequestIds:
    """Detects engine responses that are recorded more than once in a run.

    Every request of `SGLangClient` has an id of 128 random bits. A response that is recorded as two turns was sampled
    once and would be trained twice. Ids in other formats are ignored: those given to a trainer's own engine identify
    a session, not a request. Memory is 20 bytes per turn.
    """

    def __init__(self) -> None:
        self._high, self._low = array("Q"), array("Q")  # the two halves of an id
        self._episode, self._names = array("I"), list[str]()

    def add(self, episode: str, turns: Sequence[CallFacts]) -> None:
        """Add the request ids of an episode's turns."""
        self._names.append(episode)
        for turn in turns:
            rid = turn.detail.get("rid")
            if isinstance(rid, str) and (found := _CLIENT_RID.fullmatch(rid)):
                self._high.append(int(found[1], 16))
                self._low.append(int(found[2], 16))
                self._episode.append(len(self._names) - 1)

    def duplicates(self) -> Iterator[Finding]:
        """Yield a finding for each response that is recorded more than once."""
        high, low = np.frombuffer(self._high, np.uint64), np.frombuffer(self._low, np.uint64)
        order = np.lexsort((low, high))
        high, low = high[order], low[order]
        for at in np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1])):
            one, other = sorted(self._names[self._episode[order[at + step]]] for step in (0, 1))
            where = "two turns of this episode" if one == other else f"a turn of episode {one} and one of this episode"
            message = f"one engine response is recorded as {where}: request {high[at]:016x}{low[at]:016x}"
            yield Finding(FindingKind.DUPLICATE, message, other)


_SHA256 = re.compile("[0-9a-f]{64}")
_CLIENT_RID = re.compile(r"([0-9a-f]{16})([0-9a-f]{16})-[0-9]{3}")
_NO_POSITION = {"turn": 0, "parent": None, "start": 0, "purpose": "episode", "join": "root"}
"""Placeholders for the fields that a partial call does not have."""


def _request_key(event: Event) -> tuple[str, ...]:
    return (str(event.data.get("prompt_digest")), *map(str, event.data.get("within", ())))


def _read_partial(event: Event) -> CallFacts:
    empty = {name: event.arrays["sampled"][:0] for name in ("closing", "context")} if "sampled" in event.arrays else {}
    experts = {"routed_experts": None}  # their rows start at a position that a partial call does not record
    arrays = {name: values for name, values in event.arrays.items() if name != "routed_experts"}
    return read_call(replace(event, data={**event.data, **_NO_POSITION, **experts}, arrays={**arrays, **empty}))


def _starts_with(turn: CallFacts, partial: CallFacts) -> bool:
    count = len(partial.sampled)
    same = np.array_equal(turn.sampled[:count], partial.sampled) and turn.logprobs[:count].tobytes() == (
        partial.logprobs.tobytes()
    )
    return same and _versions(turn)[:count] == _versions(partial)


def _versions(facts: CallFacts) -> list[str | None]:
    return [version for version, count in facts.spans for _ in range(count)]


def _check_experts(event: Event, end: int) -> None:
    experts: Any = event.data.get("routed_experts")
    values = event.arrays.get("routed_experts")
    if experts is None and values is None:
        return
    rows = experts.get("rows") if isinstance(experts, dict) else None
    if values is None or not isinstance(rows, list) or not all(_is_count(row) for row in rows):
        raise LedgerError(f"routed_experts must have an array and a list of row counts, got {experts!r:.100}")
    count, start = sum(rows), _count(experts, "start")
    if start + count > end or (len(values) % (4 * count) if count else len(values)):
        raise LedgerError(f"{len(values)} bytes of routed experts do not fit {count} rows from {start} of {end}")


def _read_kept(event: Event, count: int) -> KeptFacts:
    ids, offsets = _array(event, "kept", "i"), _array(event, "kept_offsets", "i")
    logprobs = _array(event, "kept_logprobs", "d")
    if len(offsets) != count + 1 or len(logprobs) != count:
        raise LedgerError(
            f"{count} sampled tokens but {len(offsets) - 1} kept sets and {len(logprobs)} logprobs of them"
        )
    if offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 1).any():
        raise LedgerError(f"offsets of kept sets must rise from 0 to {len(ids)}")
    return KeptFacts(ids, offsets, logprobs)


def _first_repeated(ids: npt.NDArray[np.int32], owner: npt.NDArray[np.intp]) -> int | None:
    """Return the first token whose set has an id twice; None if there is none."""
    order = np.lexsort((ids, owner))
    same = (ids[order][1:] == ids[order][:-1]) & (owner[order][1:] == owner[order][:-1])
    return int(owner[order][1:][same].min()) if same.any() else None


def read_images(values: Any, context: npt.NDArray[np.int32]) -> tuple[ImageFacts, ...]:
    """Return the images of a turn or a trajectory.

    Args:
        values: A list of `[start, positions, digest, [time, height, width]]`.
        context: The ids in which `start` counts.

    Raises:
        LedgerError: The values do not have this format, or do not fit the ids.
    """
    found: list[ImageFacts] = []
    end = 0
    for value in values if isinstance(values, list) and values else [values]:
        if not isinstance(value, list) or len(value) != 4 or not isinstance(value[3], list) or len(value[3]) != 3:
            raise LedgerError(f"images must be a list of [start, positions, digest, grid], got {values!r:.100}")
        start, positions, digest, grid = value
        if not all(map(_is_count, (start, positions, *grid))) or not positions or 0 in grid:
            raise LedgerError(f"an image must have positions and a grid above 0, got {value!r:.200}")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise LedgerError(f"the digest of an image must be 64 hex digits, got {digest!r:.100}")
        if start < end or start + positions > len(context):
            raise LedgerError(f"an image at {start} with {positions} positions is out of order, or not in the context")
        if (context[start : start + positions] != context[start]).any():
            raise LedgerError(f"the {positions} tokens of the image at {start} are not the same placeholder")
        if grid[0] * grid[1] * grid[2] % positions:
            raise LedgerError(f"a grid of {grid} patches cannot take {positions} positions")
        found.append(ImageFacts(start, positions, digest, (grid[0], grid[1], grid[2])))
        end = start + positions
    _check_beside(found, context)
    return tuple(found)


def _check_beside(images: Sequence[ImageFacts], context: npt.NDArray[np.int32]) -> None:
    """Raise LedgerError if a placeholder beside an image belongs to no image."""
    ends = [0, *(image.start + image.positions for image in images)]
    starts = [*(image.start for image in images), len(context)]
    for number, image in enumerate(images):
        before, after = context[ends[number] : image.start], context[ends[number + 1] : starts[number + 1]]
        if context[image.start] in (*before[-1:], *after[:1]):
            raise LedgerError(f"the image at {image.start} does not take all placeholders there, got {image.positions}")


def _version_spans(spans: Any, count: int) -> tuple[tuple[str | None, int], ...]:
    found, at = [], 0
    for span in spans if isinstance(spans, list) else [spans]:
        if not isinstance(span, list) or len(span) != 3 or not isinstance(span[0], str | None):
            raise LedgerError(f"versions must be a list of [version, start, end], got {spans!r:.100}")
        version, start, end = span
        if not _is_count(start) or not _is_count(end) or start != at or end <= at:
            raise LedgerError(f"version spans {spans!r:.100} have a gap or overlap at sampled token {at}")
        found.append((version, end - start))
        at = end
    if at != count:
        raise LedgerError(f"version spans cover {at} of {count} sampled tokens")
    return tuple(found)


def _array(event: Event, name: str, code: str) -> npt.NDArray[Any]:
    values = event.arrays.get(name)
    if not isinstance(values, array) or values.typecode != code:
        raise LedgerError(f"array {name!r} of type {code!r} is missing")
    return np.asarray(values)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _count(data: Mapping[str, Any], name: str) -> int:
    value: Any = data.get(name)
    if not _is_count(value):
        raise LedgerError(f"{name} must be an int >= 0, got {value!r:.50}")
    return int(value)


def _optional_count(data: Mapping[str, Any], name: str) -> int | None:
    return None if data.get(name) is None else _count(data, name)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise LedgerError(f"{name} must be a string, got {value!r:.50}")
    return value
