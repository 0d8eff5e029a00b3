"""Growing small trees of integer tokens, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strands_sglang.tokens import Join, TokenTree, Turn, TurnPurpose, VersionSpan


def grow(
    tree: TokenTree,
    parent: Turn | None,
    context: Iterable[int],
    sampled: Sequence[int],
    *,
    closing: Iterable[int] = (),
    purpose: TurnPurpose = TurnPurpose.EPISODE,
    versions: Sequence[VersionSpan] = (),
    **more: Any,
) -> Turn:
    """Prepare and commit a turn; the logprob of token t is -t / 10."""
    join = more.pop("join", Join.ROOT if parent is None else Join.PROVED)
    caller = more.pop("caller", None)
    prepared = tree.prepare(parent, context=context, closing=closing, purpose=purpose, join=join, caller=caller)
    return tree.commit(prepared, sampled, [-token / 10 for token in sampled], versions, **more)


def forked() -> tuple[TokenTree, dict[str, Turn]]:
    """Return a tree with one of everything.

    ::

        a ── b ── c          c is cut: it was closed by d
        │    │    └─ d
        │    ├─ retry        rejected
        │    └─ side         a summary
        └─ e                 a fork
        f                    a new root, forked from d
    """
    tree = TokenTree("t")
    a = grow(tree, None, [1, 2, 3], [10, 11], versions=[VersionSpan("v1", 0, 2)], finish_reason="stop")
    b = grow(tree, a, [4], [12, 13, 14], versions=[VersionSpan("v1", 0, 1), VersionSpan("v2", 1, 3)])
    retry = grow(tree, b, [5], [20])
    tree.reject(retry)
    c = grow(tree, b, [5], [21], finish_reason="length", detail={"rid": "r", "cached_tokens": 7})
    d = grow(tree, c, [6, 7], [22, 23], closing=[99], join=Join.KEPT)
    side = grow(tree, b, [8], [30, 31], purpose=TurnPurpose.SIDE)
    e = grow(tree, a, [9], [40], join=Join.FORKED)
    prepared = tree.prepare(None, context=[1, 2, 50], join=Join.FORKED, forked_from=d.id, caller=(c.id, "call-1"))
    f = tree.commit(prepared, [51], [-0.5])
    return tree, {"a": a, "b": b, "retry": retry, "c": c, "d": d, "side": side, "e": e, "f": f}
