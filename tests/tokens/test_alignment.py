"""Where two token sequences differ, by ids and by text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.tokens.alignment import align, align_text


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=40), st.booleans())
def test_replacing_every_difference_gives_the_other_sequence(old: list[int], new: list[int], divided: bool) -> None:
    spans = align(old, new, frozenset({0}) if divided else frozenset())
    again = list(old)
    for start, end, new_start, new_end in reversed(spans):
        again[start:end] = new[new_start:new_end]
    assert again == new


def test_long_sequences_are_aligned_by_segments() -> None:
    old = [token for turn in range(400) for token in (0, *range(1, 20), turn + 100)]
    new = list(old)
    del new[5 * 21 + 3 : 5 * 21 + 9]
    new[300 * 21 + 4 : 300 * 21 + 5] = [7, 8]
    spans = align(old, new, frozenset({0}))
    again = list(old)
    for start, end, new_start, new_end in reversed(spans):
        again[start:end] = new[new_start:new_end]
    assert again == new and sum(end - start for start, end, *_ in spans) < 60


@given(st.text("ab", max_size=60), st.lists(st.integers(1, 4), max_size=60), st.lists(st.integers(1, 4), max_size=60))
def test_sequences_of_one_text_are_aligned_by_it(text: str, left: list[int], right: list[int]) -> None:
    names: dict[str, int] = {}
    old, new = ([names.setdefault(part, len(names)) for part in cut(text, sizes)] for sizes in (left, right))
    words = {id: word for word, id in names.items()}
    spans = align_text(old, new, [len(words[id]) for id in old], [len(words[id]) for id in new])
    again = list(old)
    for start, end, new_start, new_end in reversed(spans):
        again[start:end] = new[new_start:new_end]
        replaced, by = old[start:end], new[new_start:new_end]
        assert replaced != by, "what is the same is no difference"
        assert "".join(words[id] for id in replaced) == "".join(words[id] for id in by), "and no text moves"
    assert again == new


def cut(text: str, sizes: list[int]) -> list[str]:
    """Cut a text into words of given sizes; the rest is one word."""
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return [part for part in [*parts, text[at:]] if part]


def test_a_long_text_is_aligned_exactly() -> None:
    old = [token for _ in range(4000) for token in (1, 2, 3)]
    new = list(old)
    for at in range(11_998, 0, -600):
        new[at : at + 1] = [8, 9]  # one token of two bytes becomes two of one
    spans = align_text(old, new, [2] * len(old), [1 if id > 7 else 2 for id in new])
    assert len(spans) == len(range(11_998, 0, -600)) and all(span.end - span.start == 1 for span in spans)
