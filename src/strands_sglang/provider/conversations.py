"""The conversations of an episode as plain data, one a branch: what a whole rendering can be made from later.

Invariant: nothing in them is another than when its turn was prompted; writing them never fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from strands_sglang.chat.compare import Said, said_of
from strands_sglang.chat.encoder import Encoder
from strands_sglang.chat.lineage import Lineage
from strands_sglang.tokens import TokenTree, Turn, TurnPurpose
from strands_sglang.tool_parsers import ToolParser


def conversations(lineage: Lineage, tree: TokenTree) -> str:
    """Return, as JSON, what the last turn of each branch was asked: preamble, messages, and how many each turn had.

    A turn whose prompt is not one rendering, by what is known of it, has null for their number.
    """
    return _json(list(_of_branches(lineage, tree)))


def _of_branches(lineage: Lineage, tree: TokenTree) -> Iterator[dict[str, Any]]:
    for leaf in tree.branches():
        entry = lineage.entry(leaf.id)
        if entry is None:
            continue
        path = [lineage.entry(turn.id) for turn in tree.path(leaf)]
        counts = [known.prompt_count if known is not None and known.exact else None for known in path]
        messages = entry.history[: entry.prompt_count]
        yield {
            "leaf": leaf.id,
            "system": entry.preamble.system,
            "tools": entry.preamble.tools,
            "messages": messages,
            "counts": counts,
            "call_ids": dict(lineage.call_ids),
        }


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=repr).decode()
    except TypeError:  # what orjson does not take: half a surrogate pair, a number of more than 64 bits
        return json.dumps(value, default=repr)


def told_by(turns: Sequence[Turn], encoder: Encoder, parser: ToolParser) -> list[Said]:
    """Return the turns of a branch as text, from their tokens.

    Args:
        turns: The branch, from its root.
        encoder: Of the tokenizer that made them.
        parser: Knows how turns end.
    """
    told = []
    for turn in turns:
        said = said_of(encoder, parser, encoder.decode(turn.closing + turn.context), turn.sampled)
        good = "failed_calls" not in turn.detail and turn.purpose is TurnPurpose.EPISODE
        told.append(replace(said, whole=said.ended and good))
    return told


def read_conversations(end: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conversations that an end event holds; empty when it holds none."""
    try:
        found = json.loads(end.get("conversations") or "[]")
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
