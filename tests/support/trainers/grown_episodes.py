"""Episodes made up at random of tiny integer tokens: tools, forks, rejected turns, sub-agents, halves, empty turns.

If asked for, turns have kept sets, and contexts have images among their tokens.
"""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from strands_sglang.engine import RoutedExperts
from strands_sglang.runs.end_reason import EndReason
from strands_sglang.runs.episode import Episode, EpisodeMetrics
from strands_sglang.runs.reward import Reward
from strands_sglang.runs.task import Task
from strands_sglang.tokens import ImageSpan, Join, KeptSets, TokenTree, TurnPurpose, VersionSpan
from support.pictures import png

ENDS = [*EndReason]
LAYERS, TOP_K = 2, 2
VOCABULARY = 50
PLACEHOLDER = VOCABULARY + 1
"""The placeholder token of images."""
_SIZES = ((2, 2), (2, 3), (3, 2))
PICTURES = {(height, width): png(32 * width, 32 * height, height + 10 * width) for height, width in _SIZES}
"""Images by the positions they take in height and width, with patches of 16 pixels of which 2 x 2 are merged."""
FILES = {hashlib.sha256(file).hexdigest(): file for file in PICTURES.values()}
"""Their files by digest."""


def text_of(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def episode_of(tree: TokenTree, ended: EndReason = EndReason.ANSWERED, reward: Any = 1.0, **more: Any) -> Episode:
    task = Task("question", id="t")
    metrics = EpisodeMetrics(tool_calls=3, tool_seconds=1.5)
    metrics.count(tree)
    score = reward if isinstance(reward, Reward) else Reward(reward)
    more = {"images": dict(FILES) if tree.has_images else {}, **more}
    return Episode("t/0", task, 0, ended, tree, reward_detail=score, metrics=metrics, **more)


def experts_of(tree: TokenTree) -> dict[int, RoutedExperts]:
    """Return what the branch of each turn chose: of token t, experts t + 1, t + 2, ... over layers and places."""
    chosen = {turn.id: expected_experts(tree.ids(turn)[:-1]) for turn in tree}
    return {
        id: RoutedExperts((base64.b64encode(rows.tobytes()).decode(),), (len(rows),)) for id, rows in chosen.items()
    }


def expected_experts(ids: Sequence[int]) -> Any:
    """Return what `experts_of` tells of these tokens."""
    steps = np.arange(1, LAYERS * TOP_K + 1, dtype=np.int32).reshape(1, LAYERS, TOP_K)
    return np.asarray(ids, np.int32).reshape(-1, 1, 1) + steps


def with_images(rng: random.Random, context: Sequence[int]) -> tuple[list[int], list[ImageSpan]]:
    """Return a context with none to two images among its tokens, each after a token of text, and where they are."""
    made: list[int] = []
    spans: list[ImageSpan] = []
    for token in context:
        made.append(token)
        if len(spans) < 2 and rng.random() < 0.4:
            height, width = rng.choice(_SIZES)
            digest = hashlib.sha256(PICTURES[height, width]).hexdigest()
            spans.append(ImageSpan(len(made), height * width, digest, (1, 2 * height, 2 * width)))
            made += [PLACEHOLDER] * (height * width)
    return [*made, *([0] if spans else [])], spans


def sets_of(rng: random.Random, sampled: Sequence[int]) -> KeptSets:
    """Return kept sets of one to four tokens, with logprobs over them."""
    sets = [
        [token, *rng.sample([one for one in range(VOCABULARY) if one != token], rng.randrange(4))] for token in sampled
    ]
    return KeptSets.of(sets, [-rng.random() if len(one) > 1 else 0.0 for one in sets])


def grown(rng: random.Random, *, kept: bool = False, images: bool = False) -> TokenTree:
    """Return a tree as an episode may leave it behind; possibly empty."""
    tree = TokenTree()
    for _ in range(rng.choice([0, 1, 1, 2, 3, 4, 6])):
        turns = tree.turns
        root = not turns or rng.random() < 0.15
        parent = None if root else turns[-1] if rng.random() < 0.75 else rng.choice(turns)
        count = rng.choice([0, 1, 1, 2, 3, 5])
        sampled = [rng.randrange(VOCABULARY) for _ in range(count)]
        cut = rng.randrange(1, count) if count > 1 and rng.random() < 0.3 else count
        spans = [VersionSpan(rng.choice(["1", "2", None]), 0, cut)] if count else []
        spans += [VersionSpan("3", cut, count)] if cut < count else []
        length = rng.choice([0, 1, 2, 4]) if parent else rng.choice([2, 3, 5])
        context = [rng.randrange(VOCABULARY) for _ in range(length)]
        context, shown = with_images(rng, context) if images else (context, [])
        prepared = tree.prepare(
            parent,
            context=context,
            images=shown,
            closing=[VOCABULARY] if parent is not None and rng.random() < 0.2 else [],
            purpose=rng.choices(list(TurnPurpose), [8, 1, 1])[0],
            join=(Join.FORKED if turns else Join.ROOT) if parent is None else Join.PROVED,
            caller=(rng.choice(turns).id, "call") if parent is None and turns and rng.random() < 0.5 else None,
        )
        logprobs = [-rng.random() * 3 for _ in range(count)]
        detail = {"cached_tokens": rng.choice([None, 0, 1])}
        sets = sets_of(rng, sampled) if kept else None
        turn = tree.commit(prepared, sampled, logprobs, spans, detail=detail, kept=sets)
        if rng.random() < 0.12:
            tree.reject(turn)
    tree.main = max((end.id for end in tree.branches()), default=None)
    return tree
