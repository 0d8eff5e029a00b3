"""Images among the tokens of a branch: `ImageSpan`, and the two ways of writing a prompt that has images.

A branch holds the positions that the model computes: an image that takes 64 positions is 64 placeholder tokens
(*expanded*). The engine's request has one placeholder for each image (*compact*) and the images beside it. Everything
that counts tokens (masks, logprobs, budgets, exports) uses expanded positions; only the request is compact.

Invariant: `compact` of what `expand` returned is what `expand` was given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from strands_sglang.errors import CountMismatchError, TreeError


class ImageSpan(NamedTuple):
    """One image among the tokens: where it is, how many positions it takes, and which image it is."""

    start: int
    """Position of its first placeholder: in the context of its turn (`Turn.images`), otherwise in the branch."""
    positions: int
    digest: str
    """SHA-256 of the image file that is sent, in hex."""
    grid: tuple[int, int, int]
    """Patches in time, height and width, before neighbouring patches are merged (`image_grid_thw`)."""

    @property
    def end(self) -> int:
        """Position after its last placeholder token."""
        return self.start + self.positions

    def moved(self, by: int) -> ImageSpan:
        """Return the span with its positions counted from elsewhere."""
        return self._replace(start=self.start + by)


class ImageSize(NamedTuple):
    """An image that is about to become a span; fields as in `ImageSpan`."""

    positions: int
    digest: str
    grid: tuple[int, int, int]


SpanData: TypeAlias = tuple[int, int, str, tuple[int, int, int]]


def expand(ids: Sequence[int], placeholder: int, images: Sequence[ImageSize]) -> tuple[array[int], list[ImageSpan]]:
    """Repeat the placeholder of each image as often as the image has positions; return the ids and the images' spans.

    Raises:
        CountMismatchError: There are not as many placeholders as images.

    Example:
        >>> expand([5, 9, 6], 9, [ImageSize(3, "d", (1, 2, 6))])
        (array('i', [5, 9, 9, 9, 6]), [ImageSpan(start=1, positions=3, digest='d', grid=(1, 2, 6))])
    """
    compact_ids = array("i", ids)
    found = compact_ids.count(placeholder)
    if found != len(images):
        raise CountMismatchError(f"{found} image placeholders in the prompt but {len(images)} images")
    expanded, spans, at = array("i"), [], 0
    for image in images:
        place = compact_ids.index(placeholder, at)
        expanded += compact_ids[at:place]
        spans.append(ImageSpan(len(expanded), *image))
        expanded += array("i", [placeholder]) * image.positions
        at = place + 1
    expanded += compact_ids[at:]
    return expanded, spans


class PlacedImage(Protocol):
    """Anything that says where an image is."""

    @property
    def start(self) -> int:
        """Position of its first placeholder token."""

    @property
    def positions(self) -> int:
        """Number of positions it takes."""


def compact(ids: array[int], images: Iterable[PlacedImage]) -> array[int]:
    """Return expanded ids with one placeholder for each image (in order), as they are sent."""
    made, at = array("i"), 0
    for image in images:
        made += ids[at : image.start + 1]
        at = image.start + image.positions
    made += ids[at:]
    return made


def copied_images(
    spans: Iterable[tuple[int, int, str, tuple[int, int, int]]], ids: array[int]
) -> tuple[ImageSpan, ...]:
    """Return `ImageSpan`s of plain values; TreeError if they overlap, are out of order, or do not fit the ids."""
    made: list[ImageSpan] = []
    at = 0
    for span in spans:
        try:
            start, positions, digest, grid = span
            time, height, width = grid
        except (TypeError, ValueError) as error:
            raise TreeError(f"an image must be (start, positions, digest, grid): {error}") from error
        if (
            any(type(number) is not int for number in (start, positions, time, height, width))
            or type(digest) is not str
        ):
            raise TreeError(f"an image must have int positions and a str digest, got {span!r:.200}")
        if start < at or positions < 1 or start + positions > len(ids):
            raise TreeError(
                f"image at {start} with {positions} positions is out of order, or not inside {len(ids)} tokens"
            )
        if min(time, height, width) < 1:
            raise TreeError(f"the grid of an image must be positive, got {grid!r}")
        if ids[start : start + positions].count(ids[start]) != positions:
            raise TreeError(f"the {positions} tokens of the image at {start} must be the same placeholder")
        made.append(ImageSpan(start, positions, digest, (time, height, width)))
        at = start + positions
    return tuple(made)
