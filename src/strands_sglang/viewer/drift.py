"""What would have become of tokens, had their text been encoded again: `drift_view`, `reencoded`, `changed_spans`.

The package never does this. The viewer shows it token by token, because it is what a client that only has the text
trains on. `tokens/alignment.py` compares; `drift/` counts turns by cause with the same comparison.

Invariant: replacing the ids of each span by its new ids, from the last to the first, gives exactly the other ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from strands_sglang.errors import StrandsSGLangError
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.tokens import TokenTree
from strands_sglang.tokens.alignment import align, align_text
from strands_sglang.viewer.token_text import TokenTexts


class ChangedSpan(NamedTuple):
    """Tokens that would have become others."""

    start: int
    """Position of the first token, counted from the first of the compared ids."""
    end: int
    """Position after the last token; equal to `start` if tokens would have been added only."""
    ids: list[int]
    """What they would have become."""


def drift_view(record: EpisodeRecord, texts: TokenTexts | None) -> dict[str, Any]:
    """Return what encoding the text of each turn again would have made of its sampled tokens, for the page.

    Encoding takes longer than everything else that is shown of an episode, so the page asks for it later.

    `texts`: the tokenizer; None: nothing is known. Returns `turns`: by id of the turn, `[start, end, ids]` by position
    among its sampled tokens, [] if nothing changes; turns that cannot be encoded are absent. `words`: text of each new
    id, or its bytes as hex in a list of one.
    """
    turns: dict[str, list[list[Any]]] = {}
    words: dict[str, Any] = {}
    if texts is None:
        return {"turns": turns, "words": words}
    try:
        tree = record.tree()
    except StrandsSGLangError:  # told by `episode_view`
        tree = TokenTree(record.id)
    for turn in tree:
        try:
            spans = reencoded(turn.sampled, texts) if turn.sampled else []
        except (OverflowError, TypeError, ValueError):  # ids that no tokenizer has
            continue
        turns[str(turn.id)] = [list(span) for span in spans]
        for id in {id for span in spans for id in span.ids}:
            text = texts.text_of(id)
            words[str(id)] = [texts.bytes_of(id).hex()] if text is None else text
    return {"turns": turns, "words": words}


def reencoded(ids: Sequence[int], texts: TokenTexts) -> list[ChangedSpan]:
    """Return where decoding ids and encoding the text again gives other tokens; empty: it gives the same."""
    return changed_spans(list(ids), texts.encode(texts.decode(ids)), texts)


def changed_spans(before: list[int], after: list[int], texts: TokenTexts) -> list[ChangedSpan]:
    """Return the differences between two lists of ids: by their text if it is the same, by ids otherwise.

    `after`: the other ids. `texts`: the tokenizer. Long lists are divided at its control tokens and line breaks before
    they are aligned.
    """
    if before == after:
        return []
    left, right = [texts.bytes_of(id) for id in before], [texts.bytes_of(id) for id in after]
    if b"".join(left) == b"".join(right):
        found = align_text(before, after, [len(data) for data in left], [len(data) for data in right])
    else:
        ends = {id for id in {*before, *after} if texts.is_special(id) or b"\n" in texts.bytes_of(id)}
        found = align(before, after, frozenset(ends))
    return [ChangedSpan(start, end, after[new_start:new_end]) for start, end, new_start, new_end in found]
