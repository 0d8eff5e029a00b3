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


def conversations(lineage: Lineage, tree: TokenTree) -> list[dict[str, Any]]:
    """Return what the last turn of each branch was asked: preamble, messages, and how many each turn had.

    A turn whose prompt is not one rendering, by what is known of it, has None for their number.
    """
    return list(_of_branches(lineage, tree))


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


def plain_json(value: Any) -> str:
    """Return anything as JSON text; what is not plain data in words."""
    try:
        return orjson.dumps(value, default=repr).decode()
    except TypeError:  # what orjson does not take: half a surrogate pair, a number of more than 64 bits
        return json.dumps(value, default=repr)


def read_json(text: Any) -> Any:
    """Return what `plain_json` wrote; None when it is something else."""
    if not isinstance(text, str):
        return None
    try:
        return orjson.loads(text)
    except ValueError:  # what orjson does not take
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None


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
    found = read_json(end.get("conversations"))
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
