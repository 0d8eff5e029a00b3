"""Images in a tree: compact and expanded positions, over random trees, against plain lists."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens import ImageSize, ImageSpan, Join, Origin, TokenTree, Trajectory, Turn, compact, expand

PLACEHOLDER = 9
Piece: TypeAlias = int | ImageSize

images = st.builds(ImageSize, st.integers(1, 5), st.sampled_from("abc"), st.tuples(*[st.integers(1, 4)] * 3))
pieces = st.lists(st.one_of(st.integers(0, 5), images), max_size=6)


def compact_of(parts: list[Piece]) -> list[int]:
    """Return the ids that are sent for some parts."""
    return [PLACEHOLDER if isinstance(part, ImageSize) else part for part in parts]


def expanded_of(parts: list[Piece]) -> list[int]:
    """Return the ids that the model computes for some parts."""
    return [
        token for part in parts for token in ([PLACEHOLDER] * part.positions if isinstance(part, ImageSize) else [part])
    ]


@given(parts=pieces)
def test_compact_undoes_expand(parts: list[Piece]) -> None:
    shown = [part for part in parts if isinstance(part, ImageSize)]
    ids, spans = expand(compact_of(parts), PLACEHOLDER, shown)
    assert ids.tolist() == expanded_of(parts)
    assert [ImageSize(*span[1:]) for span in spans] == shown
    assert all(set(ids[span.start : span.end]) == {PLACEHOLDER} for span in spans)
    assert compact(ids, spans).tolist() == compact_of(parts)


@pytest.mark.parametrize("shown", [0, 1, 3])
def test_placeholders_must_equal_images(shown: int) -> None:
    with pytest.raises(CountMismatchError, match=f"2 image placeholders in the prompt but {shown} images"):
        expand([PLACEHOLDER, 1, PLACEHOLDER], PLACEHOLDER, [ImageSize(2, "d", (1, 2, 4))] * shown)


@dataclass
class Grown:
    """A tree, and for each turn the parts of its whole branch, as a list that knows nothing of trees."""

    tree: TokenTree = field(default_factory=lambda: TokenTree("t"))
    branches: list[list[Piece]] = field(default_factory=list)
    mask: list[list[int]] = field(default_factory=list)

    def add(self, parent: int | None, closing: list[int], context: list[Piece], sampled: list[int]) -> Turn:
        """Prepare and commit a turn; compare the prompt with the list."""
        before = [] if parent is None else self.branches[parent]
        closing = [] if parent is None else closing
        ids, spans = expand(compact_of(context), PLACEHOLDER, [part for part in context if isinstance(part, ImageSize)])
        join = Join.ROOT if parent is None else Join.PROVED
        after = None if parent is None else self.tree[parent]
        prepared = self.tree.prepare(after, closing=closing, context=ids, join=join, images=spans)
        prompt: list[Piece] = [*before, *closing, *context]
        assert prepared.ids.tolist() == expanded_of(prompt)
        assert prepared.compact_ids().tolist() == compact_of(prompt)
        assert [ImageSize(*image[1:]) for image in prepared.images] == [
            part for part in prompt if isinstance(part, ImageSize)
        ]
        turn = self.tree.commit(prepared, sampled, [-0.5] * len(sampled), prompt_tokens=len(expanded_of(prompt)))
        self.branches.append([*prompt, *sampled])
        known = [] if parent is None else self.mask[parent]
        self.mask.append([*known, *[0] * (len(expanded_of([*closing, *context]))), *[1] * len(sampled)])
        return turn


turns = st.lists(
    st.tuples(
        st.integers(-1, 5),
        st.lists(st.integers(0, 5), max_size=2),
        pieces,
        st.lists(st.integers(0, 5), max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


@given(steps=turns)
def test_positions_over_random_trees(steps: list[tuple[int, list[int], list[Piece], list[int], bool]]) -> None:
    """Forks, closings, empty and rejected turns: every array counts expanded positions, and the wire is compact."""
    grown = Grown()
    for parent, closing, context, sampled, rejected in steps:
        turn = grown.add(parent if 0 <= parent < len(grown.branches) else None, closing, context, sampled)
        if rejected:
            grown.tree.reject(turn)
    for tree in (grown.tree, TokenTree.from_dict(grown.tree.to_dict())):
        for turn, parts in zip(tree, grown.branches, strict=True):
            trajectory = tree.trajectory(turn)
            trajectory.validate()
            assert trajectory.token_ids.tolist() == expanded_of(parts) == tree.ids(turn).tolist()
            assert trajectory.compact_ids().tolist() == compact_of(parts)
            assert len(trajectory) == turn.end
            assert (trajectory.origins == Origin.SAMPLED).astype(int).tolist() == grown.mask[turn.id]
            assert list(trajectory.images) == tree.images(turn)
            for image in trajectory.images:
                assert set(trajectory.token_ids[image.start : image.end].tolist()) == {PLACEHOLDER}
                assert not trajectory.loss_mask[image.start : image.end].any()
            assert Trajectory.from_dict(trajectory.to_dict()) == trajectory
        trained = sum(int(one.loss_mask.sum()) for one in tree.trajectories())
        assert trained == sum(len(turn.sampled) for turn in tree if not turn.rejected)


def with_image() -> TokenTree:
    """Return a tree of one turn, whose context is 1, an image of three positions, 2."""
    grown = Grown()
    grown.add(None, [], [1, ImageSize(3, "d", (1, 2, 6)), 2], [4])
    return grown.tree


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        *(((0, 3, "d", (1, 2, 6)), "same placeholder"), ((1, 5, "d", (1, 2, 6)), "not inside")),
        *(((1, 0, "d", (1, 2, 6)), "not inside"), ((1, 3, "d", (1, 0, 6)), "must be positive")),
        *(((1, 3, 7, (1, 2, 6)), "str digest"), ((1, True, "d", (1, 2, 6)), "int positions"), ((1, 3, "d"), "must be")),
    ],
)
def test_impossible_spans_are_refused(span: tuple[object, ...], problem: str) -> None:
    context = array("i", [1, PLACEHOLDER, PLACEHOLDER, PLACEHOLDER, 2])
    with pytest.raises(TreeError, match=problem):
        TokenTree().prepare(None, context=context, images=[span])  # type: ignore[list-item]
    record = with_image().to_dict()
    record["turns"][0]["images"] = [list(span)]
    with pytest.raises(RecordError, match=problem):
        TokenTree.from_dict(record)


def test_spans_are_in_order() -> None:
    spans = [ImageSpan(2, 1, "d", (1, 1, 1)), ImageSpan(1, 1, "d", (1, 1, 1))]
    with pytest.raises(TreeError, match="out of order"):
        TokenTree().prepare(None, context=[1, 9, 9], images=spans)


def test_trees_without_images_are_written_as_before() -> None:
    grown = Grown()
    turn = grown.add(None, [], [1, 2], [4])
    assert "images" not in grown.tree.to_dict()["turns"][0]
    assert "images" not in grown.tree.trajectory(turn).to_dict()
