"""A token engine whose answers a test writes as text, and the invariants that hold whatever an agent does with it.

The engine encodes each answer with the real tokenizer, and remembers every list of ids it was sent. `assert_exact`
compares what it was sent with what was recorded.
"""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from strands_sglang.engine import (
    AbortPolicy,
    Capability,
    FinishReason,
    Generation,
    GenerationChunk,
    PromptImage,
    RoutedExperts,
)
from strands_sglang.engine.protocol import CancelSignal, TokenIds
from strands_sglang.errors import CallCancelledError
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tokens import KeptSets, Origin, TokenTree, TurnPurpose, VersionSpan


@dataclass
class Reply:
    """What the engine answers."""

    text: str = ""
    """What is sampled, as text; control tokens may be written in it."""
    ended: bool = True
    finish: FinishReason = FinishReason.STOP
    detail: int | str | None = None
    ids: list[int] | None = None
    version: str | None = "v1"
    hangs: bool = False
    before: Callable[[], Awaitable[None]] | None = None
    splits: Sequence[int] | None = None
    """Sizes of the chunks when it is streamed; None: one token each."""
    experts: RoutedExperts | None = None


Answer: TypeAlias = "Reply | str | Exception"
Script: TypeAlias = "Iterable[Answer] | Callable[[str], Answer]"


@dataclass(eq=False)
class EngineCall:
    """One call as the engine saw it."""

    ids: list[int]
    sampling: dict[str, Any]
    asked: dict[str, Any]
    answered: bool = False


@dataclass
class ScriptedEngine:
    """A `TokenEngine` that answers from a script: a list of answers in order, or a function of the prompt's text."""

    tokenizer: Any
    script: Script
    end: str = "<|im_end|>"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.SCORING, Capability.CONTROL}
    calls: list[EngineCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = None if callable(self.script) else iter(list(self.script))

    @property
    def prompts(self) -> list[str]:
        return [self.decode(call.ids) for call in self.calls]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; control tokens in it count."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

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
        images: Sequence[PromptImage] = (),
        kept_sets: bool = False,
    ) -> Generation:
        asked: dict[str, Any] = {
            "routing_key": routing_key,
            "deadline": deadline,
            "on_abort": on_abort,
            "routed_experts_start": routed_experts_start,
            "extra": extra,
        }
        if images:
            asked["images"] = list(images)
        if kept_sets:
            asked["kept_sets"] = True
        call, reply = self._next(input_ids, sampling_params, asked)
        await _wait(reply, cancel_signal)
        call.answered = True
        turn = self._generation(call, reply)
        return turn if not kept_sets else replace(turn, kept=kept_of(turn.token_ids, turn.logprobs))

    async def stream(
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
        asked = {"routing_key": routing_key, "deadline": deadline, "on_abort": on_abort, "extra": extra}
        call, reply = self._next(input_ids, sampling_params, asked)
        whole = self._generation(call, reply)
        at = 0
        sizes = list(reply.splits) if reply.splits is not None else [1] * len(whole)
        for size in sizes:
            if cancel_signal is not None and cancel_signal.is_set():
                raise CallCancelledError("cancelled by the test")
            yield GenerationChunk(whole.token_ids[at : at + size], whole.logprobs[at : at + size])
            at += size
        await _wait(reply, cancel_signal)
        call.answered = True
        yield GenerationChunk(whole.token_ids[at:], whole.logprobs[at:], whole)

    def _next(
        self, input_ids: TokenIds, sampling: Mapping[str, Any] | None, asked: dict[str, Any]
    ) -> tuple[EngineCall, Reply]:
        call = EngineCall([int(token) for token in input_ids], dict(sampling or {}), asked)
        with self._lock:
            self.calls.append(call)
            if callable(self.script):
                answer = self.script(self.decode(call.ids))
            else:
                assert self._answers is not None
                answer = next(self._answers, AssertionError("the script has no more answers"))
        if isinstance(answer, Exception):
            raise answer
        return call, Reply(answer) if isinstance(answer, str) else answer

    def _generation(self, call: EngineCall, reply: Reply) -> Generation:
        ids = self.encode(reply.text + (self.end if reply.ended else "")) if reply.ids is None else reply.ids
        finish, detail = reply.finish, reply.detail
        if detail is None and finish is FinishReason.STOP and ids:
            detail = ids[-1]
        budget = call.sampling.get("max_new_tokens")
        if budget is not None and len(ids) > budget:
            ids, finish, detail = ids[:budget], FinishReason.LENGTH, budget
        # A logprob of its own for every token and call, so that a mix-up shows.
        number = self.calls.index(call) + 1
        return Generation(
            token_ids=array("i", ids),
            logprobs=array("d", [-number - at / 1024 for at in range(len(ids))]),
            finish_reason=finish,
            finish_detail=detail,
            versions=(VersionSpan(reply.version, 0, len(ids)),) if ids else (),
            prompt_tokens=len(call.ids),
            cached_tokens=len(call.ids) // 2,
            rid=f"rid-{number}",
            routed_experts=reply.experts,
        )


def kept_of(ids: Sequence[int], logprobs: Sequence[float]) -> KeptSets:
    """Return kept sets for sampled tokens: those with an even id have two others beside them."""
    sets = [[token, token + 1, token + 2] if token % 2 == 0 else [token] for token in ids]
    return KeptSets.of(
        sets, [logprob / 2 if len(one) > 1 else 0.0 for one, logprob in zip(sets, logprobs, strict=True)]
    )


async def _wait(reply: Reply, cancel_signal: CancelSignal | None) -> None:
    if reply.before is not None:
        await reply.before()
    while reply.hangs or (cancel_signal is not None and cancel_signal.is_set()):
        if cancel_signal is not None and cancel_signal.is_set():
            raise CallCancelledError("cancelled by the test")
        await asyncio.sleep(0.001)


def tool_call(name: str, /, **arguments: Any) -> str:
    """Return a tool call as Qwen writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def thought(text: str, answer: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{answer}"


CHECKED: set[int] = set()
"""Engines (by `id`) that a test has checked itself, with the episodes it knows of."""


def assert_exact(engine: ScriptedEngine, *episodes: EpisodeTokens, trees: Sequence[TokenTree] = ()) -> None:
    """Check every invariant of tokens that does not depend on what was tried.

    What the engine was sent is what was recorded, call by call; loss is on sampled tokens only; every sampled token
    of a kept turn of an agent is trained once over all trajectories, and no other token ever.
    """
    CHECKED.add(id(engine))
    grown = [*trees, *(episode.tree for episode in episodes)]
    sent = Counter(tuple(call.ids) for call in engine.calls if call.answered)
    recorded: Counter[tuple[int, ...]] = Counter()
    for tree in grown:
        assert TokenTree.from_dict(tree.to_dict()).to_dict() == tree.to_dict()
        for turn in tree:
            before = list(tree.ids(tree[turn.parent])) if turn.parent is not None else []
            prompt = [*before, *turn.closing, *turn.context]
            assert list(tree.ids(turn)) == [*prompt, *turn.sampled]
            assert len(prompt) == turn.sampled_start == turn.detail["prompt_tokens"]
            recorded[tuple(prompt)] += 1
        _assert_trained_once(tree)
    assert recorded == sent, "what was recorded is not what the engine was sent"
    for episode in episodes:
        manager = episode.token_manager
        assert len(manager.token_ids) == len(manager.loss_mask) == len(manager.logprobs) == len(manager)
        assert [token for segment in manager.segments for token in segment] == manager.token_ids


def _assert_trained_once(tree: TokenTree) -> None:
    trained: Counter[tuple[int, int]] = Counter()
    for trajectory in tree.trajectories():
        trajectory.validate()
        assert not np.any(trajectory.loss_mask[trajectory.origins != Origin.SAMPLED])
        for at in np.flatnonzero(trajectory.loss_mask):
            turn = tree[trajectory.turn_ids[int(trajectory.turns[at])]]
            offset = int(at) - turn.sampled_start
            assert turn.sampled[offset] == trajectory.token_ids[at]
            assert turn.logprobs[offset] == trajectory.logprobs[at]
            trained[turn.id, offset] += 1
    wanted = Counter(
        {
            (turn.id, offset): 1
            for turn in tree
            if turn.purpose is TurnPurpose.EPISODE and not turn.rejected
            for offset in range(len(turn.sampled))
        }
    )
    assert trained == wanted
