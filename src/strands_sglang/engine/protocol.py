"""The `TokenEngine` protocol, the interface to anything that samples tokens, and its result, `Generation`.

An engine takes the ids of the whole prompt and returns a complete `Generation`, or raises. It returns an incomplete
turn (`ABORT`) only if the caller requested that. What else it can do it declares in `capabilities`; callers ask for a
`Capability`, never for a class. To write one, subclass `BaseEngine` (`base.py`).

Invariant: `token_ids`, `logprobs` and the union of `versions` have the same length, and position i in each of them is
the i-th sampled token. Ids are not negative; logprobs are finite and not above zero (within rounding). A `Generation`
that violates this cannot be constructed, whichever engine it comes from.
"""

from __future__ import annotations

import base64
import binascii
import math
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, Union, runtime_checkable

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import CountMismatchError, MalformedResponseError
from strands_sglang.tokens.arrays import LARGEST_LOGPROB, VersionSpan, check_spans
from strands_sglang.tokens.images import SpanData
from strands_sglang.tokens.kept_sets import KeptSets

__all__ = ["FinishReason", "Generation", "PromptImage", "RoutedExperts", "SpecInfo", "VersionSpan"]

_NOTHING: Mapping[str, Any] = {}


class FinishReason(str, Enum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    """A stop token or stop string was matched."""
    LENGTH = "length"
    """`max_new_tokens` or the engine's context was used up: the turn is truncated."""
    ABORT = "abort"
    """The request was ended from outside (a weight update, an abort): the turn is partial."""
    UNKNOWN = "unknown"
    """A reason that is not in this list; `finish_detail` holds its name."""


# The key of a reason's detail in SGLang's answer.
DETAIL_KEYS = {FinishReason.STOP: "matched", FinishReason.LENGTH: "length", FinishReason.ABORT: "message"}


@dataclass(frozen=True, slots=True)
class SpecInfo:
    """Counts of speculative decoding, summed over the call."""

    accepted_tokens: int
    drafted_tokens: int
    verify_count: int
    """Forward passes of the target model that verified drafts."""


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts that a mixture-of-experts model chose, for a contiguous run of token positions.

    Kept as sent and decoded on demand. The engine sends one row for each position of the sequence except the last
    (which was sampled, not fed), as base64 of int32. If a turn took several requests, their rows are joined in order of
    position; each row holds the choice of the weights that processed that token.

    Invariant: row i belongs to position `start + i` of prompt plus sampled tokens; there are no gaps.
    """

    parts: tuple[str, ...]
    """Base64 of int32, one entry per request, in order of position."""
    rows: tuple[int, ...]
    """Rows in each entry of `parts`."""
    start: int = 0
    """Position of the first row in the sequence."""

    def __len__(self) -> int:
        return sum(self.rows)

    def joined(self, later: RoutedExperts) -> RoutedExperts:
        """Return these rows followed by `later`, which must start where these end."""
        if later.start != self.start + len(self):
            raise CountMismatchError(
                f"routed experts end at position {self.start + len(self)} but continue at {later.start}"
            )
        return RoutedExperts(self.parts + later.parts, self.rows + later.rows, self.start)

    def decode(self, layers: int | None = None, top_k: int | None = None) -> npt.NDArray[np.int32]:
        """Decode the rows.

        Args:
            layers: Number of layers with experts; the data is checked against it.
            top_k: Experts chosen per token and layer; the data is checked against it.

        Returns:
            int32 of shape (rows, layers, top_k) if both are given, else (rows, layers * top_k).

        Raises:
            CountMismatchError: The data does not fit that shape.
        """
        arrays: list[npt.NDArray[np.int32]] = []
        for part, rows in zip(self.parts, self.rows, strict=True):
            flat = _int32(part)
            if not rows and not flat.size:
                continue
            if not rows or flat.size % rows:
                raise CountMismatchError(f"{flat.size} routed experts cannot be split into {rows} rows")
            arrays.append(flat.reshape(rows, flat.size // rows))
            first, width = arrays[0].shape[1], arrays[-1].shape[1]
            if width != first:
                raise CountMismatchError(f"routed experts have rows of width {width} after rows of width {first}")
        joined = np.concatenate(arrays) if arrays else np.empty((0, (layers or 0) * (top_k or 0)), np.int32)
        if layers is None or top_k is None:
            return joined
        if layers * top_k != joined.shape[1]:
            raise CountMismatchError(f"each row must hold {layers} layers x {top_k} experts, got {joined.shape[1]}")
        return joined.reshape(len(joined), layers, top_k)


@dataclass(slots=True)
class Generation:
    """The tokens sampled by one call, with everything a trainer needs to know about them.

    Treat it as read-only. (It is not a frozen dataclass because that would cost more per call than all its checks.)

    Example:
        ```python
        turn = await client.generate(prompt_ids, {"max_new_tokens": 64})
        for token, logprob in zip(turn.token_ids, turn.logprobs):
            print(token, logprob)
        ```
    """

    token_ids: array[int]
    """Sampled ids (32-bit), including the stop token if one was sampled."""
    logprobs: array[float]
    """Log-probability of each sampled token as the engine reports it; same length as `token_ids`."""
    finish_reason: FinishReason
    finish_detail: int | str | list[int] | None = None
    """The matched stop token(s) or string (STOP), the limit in tokens (LENGTH), the engine's message (ABORT)."""
    versions: tuple[VersionSpan, ...] = ()
    """Spans of weight versions, in order and without gaps, covering every sampled token; empty without tokens."""
    prompt_tokens: int = 0
    """Number of prompt tokens sent; checked against the engine's count."""
    cached_tokens: int | None = None
    """Prompt tokens served from the engine's prefix cache; None if the engine does not report it."""
    rid: str = ""
    requests: int = 1
    """HTTP requests the call took: 1 plus retries plus continuations."""
    continuations: int = 0
    """How often the engine interrupted the turn and it was continued from its partial tokens."""
    discarded_tokens: int = 0
    """Sampled tokens discarded because the turn had to start over (see `AbortPolicy.CONTINUE`)."""
    routed_experts: RoutedExperts | None = None
    """Expert choices per token position, decoded on demand; None if not requested."""
    spec: SpecInfo | None = None
    meta: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """The rest of the engine's `meta_info` of the last request."""
    kept: KeptSets | None = None
    """The tokens that top-p, top-k and min-p left to choose from, for each sampled token, and its logprob under that
    behaviour policy; None if not requested."""
    text: str | None = field(default=None, compare=False, repr=False)
    """The tokens decoded by the engine (`skip_special_tokens` applies); None if the turn took several requests or does
    not come from a server."""
    adapter: str | None = None
    """The LoRA adapter that the last request named, also part of its `versions`; None: the base weights."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if len(self.logprobs) != count:
            raise CountMismatchError(f"{count} sampled tokens but {len(self.logprobs)} logprobs")
        check_spans(self.versions, count)
        if self.kept is not None:
            self.kept.check_members(self.token_ids)
        if count:
            self._check_values()

    def _check_values(self) -> None:
        lowest = int(np.asarray(self.token_ids).min())
        if lowest < 0:
            raise MalformedResponseError(f"sampled token ids must be 0 or above, got {lowest}")
        logprobs = np.asarray(self.logprobs)
        least, most = float(logprobs.min()), float(logprobs.max())
        if not (math.isfinite(least) and most <= LARGEST_LOGPROB):  # NaN propagates to both
            at = int((~(np.isfinite(logprobs) & (logprobs <= LARGEST_LOGPROB))).argmax())
            raise MalformedResponseError(
                f"the logprob of sampled token {at} must be finite and at most 0, got {self.logprobs[at]}"
            )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __getitem__(self, key: str) -> Any:
        """Return a field by its name in SGLang's answer: `text`, `output_ids`, `meta_info`; built on each access."""
        if key == "text" and self.text is not None:
            return self.text
        if key == "output_ids":
            return self.token_ids.tolist()
        if key == "meta_info":
            return self._meta_info()
        raise KeyError(f"this Generation has no {key!r}; for its text, use tokenizer.decode(token_ids)")

    def _meta_info(self) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": self.finish_reason.value}
        if (name := DETAIL_KEYS.get(self.finish_reason)) is not None:
            finish[name] = self.finish_detail
        meta: dict[str, Any] = {
            **self.meta,
            "id": self.rid,
            "finish_reason": finish,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self),
            "cached_tokens": self.cached_tokens or 0,
            "weight_version": self.weight_version,
            "output_token_logprobs": [
                [logprob, token, None] for logprob, token in zip(self.logprobs, self.token_ids, strict=True)
            ],
        }
        if self.routed_experts is not None and len(self.routed_experts.parts) == 1:
            meta["routed_experts"] = self.routed_experts.parts[0]
        return meta

    @property
    def weight_version(self) -> str | None:
        """Weight version of the last sampled token; None if there are no tokens or it is unknown."""
        return self.versions[-1].version if self.versions else None

    def versions_per_token(self) -> list[str | None]:
        """Return the weight version of each sampled token."""
        return [span.version for span in self.versions for _ in range(span.start, span.end)]


def _int32(part: str) -> npt.NDArray[np.int32]:
    try:
        return np.frombuffer(base64.b64decode(part, validate=True), dtype="<i4").astype(np.int32, copy=False)
    except (binascii.Error, ValueError) as error:
        raise MalformedResponseError(f"routed experts must be base64 of int32: {error}") from error


class PromptImage(NamedTuple):
    """An image of a prompt, and where it is among the ids."""

    start: int
    positions: int
    """Number of placeholders: the ids have one for every position that the image takes."""
    png: bytes
    digest: str = ""
    """SHA-256 of the file in hex; "" if nothing needs it."""


def prompt_images(spans: Iterable[SpanData], read: Callable[[str], bytes]) -> list[PromptImage]:
    """Return the images of a prompt, as an engine takes them; `read` returns the PNG file of a digest."""
    return [PromptImage(start, positions, read(digest), digest) for start, positions, digest, _ in spans]


TokenIds: TypeAlias = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]
"""Token ids: a list, an `array`, or a one-dimensional numpy array of integers."""


class AbortPolicy(str, Enum):
    """What to do with a turn that the engine itself ended with `abort` (a weight update, a drained worker)."""

    CONTINUE = "continue"
    """Continue it: send the prompt plus the partial tokens, with the budget reduced by the tokens used.

    If continuing would not be exact, the turn starts over and the partial tokens are discarded. This is the case with
    stop strings, grammars, penalties and logit processors (their state is lost with the interrupted request), and
    without `max_new_tokens` (the budget is unknown). `Generation.discarded_tokens` counts the discarded tokens.
    """
    RETURN = "return"


pause_requested: ContextVar[Callable[[], bool] | None] = ContextVar("strands_sglang_pause_requested", default=None)
"""Returns True once the calls of this context must not start further requests; requests in flight are left to finish.
None: there is no such condition. A client checks it before every attempt."""

in_run: ContextVar[bool] = ContextVar("strands_sglang_in_run", default=False)
"""Whether the calls of this context belong to a run, or to a batch, which waits for a server that is down. A person
does not: see `SGLangClient(max_retries=...)`."""


class OutageWatch(Protocol):
    """Receives the failed attempts of one call, so that time limits of its caller can exclude outages."""

    def failed(self, since: float) -> None:
        """Called when an attempt failed and is retried; it started at `since`, by `time.monotonic`."""

    def answered(self, since: float) -> None:
        """Called when an attempt that started at `since` was answered after failed ones."""


outages: ContextVar[OutageWatch | None] = ContextVar("strands_sglang_outages", default=None)
"""Receives the failed attempts of the calls of this context; None: nothing does."""


@runtime_checkable
class CancelSignal(Protocol):
    """Anything with `is_set()`: a `threading.Event` (as Strands passes), an `asyncio.Event`."""

    def is_set(self) -> bool:
        """Return True once the caller has requested that the call ends."""
        ...


class Capability(str, Enum):
    """What an engine can do beyond `TokenEngine.generate` with ids and sampling parameters."""

    STREAMING = "streaming"
    """It is a `StreamingEngine`: `stream` yields tokens as they are sampled."""
    IMAGES = "images"
    """`generate` accepts `images`, a sequence of `PromptImage`: the images of the prompt, in order."""
    KEPT_SETS = "kept_sets"
    """`generate` accepts `kept_sets`, and returns the tokens that were left to choose from."""
    ROUTED_EXPERTS = "routed_experts"
    """`generate` returns the routed experts that `routed_experts_start` requests."""
    ADAPTERS = "adapters"
    """`generate` accepts `adapter`, the name of a loaded LoRA adapter, and tells it in `Generation.versions`."""
    SCORING = "scoring"
    """It is a `ScoringEngine`: `score` returns the logprobs of given tokens."""
    SESSIONS = "sessions"
    """It is a `SessionEngine`: the prefix cache prefers the prompts of open sessions."""
    CONTROL = "control"
    """It is a `ServerEngine`: an SGLang server or router, with health, information, pausing and weight updates.
    It has all other capabilities too, except `SESSIONS`, which is switched on."""


@runtime_checkable
class TokenEngine(Protocol):
    """Takes token ids, returns sampled ids and logprobs.

    An engine with further capabilities has an attribute `capabilities`, a set of `Capability`; without it, it has none.
    `BaseEngine` implements the protocol for engines that only need to send one request.

    Example:
        ```python
        class MyEngine:
            async def generate(self, input_ids, sampling_params=None, **options) -> Generation:
                ids, logprobs = await my_server.sample(list(input_ids), **(sampling_params or {}))
                return Generation(array("i", ids), array("d", logprobs), FinishReason.STOP)

        model = SGLangModel(tokenizer="Qwen/Qwen3-8B", client=MyEngine())
        ```
    """

    async def generate(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Generation:
        """Sample a continuation of `input_ids`.

        `images`, `kept_sets`, `adapter` and `session` are passed only if they are used, so only engines that declare
        them need to accept them (`Capability`).

        Args:
            input_ids: The whole prompt; sent exactly as given.
            sampling_params: SGLang sampling parameters; never modified.
            routing_key: Requests with the same key go to the same worker (for example an episode id).
            deadline: Seconds the call may take in total, including waiting and retries; None: the engine's default.
            cancel_signal: Ends the call soon after it is set, on the engine too.
            on_abort: What to do when the engine ends the turn with `abort`.
            routed_experts_start: First token position whose routed experts are returned; None: none are.
            extra: Further fields of the engine's request, such as `lora_path`.
        """
        ...


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """Newly sampled tokens."""

    token_ids: array[int]
    logprobs: array[float]
    generation: Generation | None = None
    """The complete turn, in the last chunk; None before."""


class StreamingEngine(TokenEngine, Protocol):
    """An engine with `Capability.STREAMING`."""

    def stream(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        deadline: float | None = None,
        cancel_signal: CancelSignal | None = None,
        on_abort: AbortPolicy = AbortPolicy.CONTINUE,
        extra: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[GenerationChunk, None]:
        """Sample a continuation and yield tokens as they are sampled; the last chunk carries the whole `Generation`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """Logprobs of consecutive tokens of a prompt, one row per token."""

    logprobs: npt.NDArray[np.float64]
    """Logprob of each token after the tokens before it. Meaningless at the positions of an image."""
    top_ids: npt.NDArray[np.int32]
    """The likeliest ids at each position, likeliest first; shape (tokens, top)."""
    top_logprobs: npt.NDArray[np.float64]

    @property
    def top(self) -> int:
        """Number of likeliest ids at each position; 0 if they were not requested."""
        return int(self.top_ids.shape[1])

    def __len__(self) -> int:
        return len(self.logprobs)


class ScoringEngine(TokenEngine, Protocol):
    """An engine with `Capability.SCORING`."""

    async def score(
        self, input_ids: TokenIds, start: int, *, images: Sequence[PromptImage] = (), top: int = 0
    ) -> Prefill:
        """Return the engine's logprobs of `input_ids[start:]`, at temperature 1.

        Args:
            input_ids: The ids, with a placeholder for every position of an image.
            start: First position whose logprob is returned; at least 1, because the first token follows nothing.
            top: Number of likeliest ids to return for each position; at most the size of the vocabulary.
        """
        ...


class SessionEngine(TokenEngine, Protocol):
    """An engine with `Capability.SESSIONS`: `generate` and `stream` accept `session`, a name of the caller's choice."""

    async def close_session(self, session: str) -> None:
        """End a session, if it was opened; never raises. A later call with this name would open it again."""
        ...


def has_sessions(engine: TokenEngine) -> TypeGuard[SessionEngine]:
    """Return whether an engine has sessions (`Capability.SESSIONS`)."""
    return can(engine, Capability.SESSIONS) and hasattr(engine, "close_session")


def can(engine: TokenEngine, capability: Capability) -> bool:
    """Return whether an engine declares a capability."""
    return capability in getattr(engine, "capabilities", ())


def streams(engine: TokenEngine) -> TypeGuard[StreamingEngine]:
    """Return whether an engine streams (`Capability.STREAMING`)."""
    return can(engine, Capability.STREAMING)


def scores(engine: TokenEngine) -> TypeGuard[ScoringEngine]:
    """Return whether an engine scores given tokens (`Capability.SCORING`)."""
    return can(engine, Capability.SCORING)
