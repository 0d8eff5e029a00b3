"""Which experts a mixture-of-experts model chose for each token position, kept as sent and decoded on demand.

The engine sends one row per position of the sequence except the last (which was sampled, not fed), as base64 of
int32. Rows of a turn that ran in several requests are joined in the order of their positions; each row keeps
the choice made by the weights that really fed that token.

Invariant: row i belongs to position `start + i` of prompt plus sampled tokens, and rows are without gaps.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import CountMismatchError, MalformedResponseError


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Expert choices of a contiguous run of token positions."""

    parts: tuple[str, ...]
    """Base64 of int32, one part a request, in the order of their positions."""
    rows: tuple[int, ...]
    """Rows in each part."""
    start: int = 0
    """Position in the sequence of the first row."""

    def __len__(self) -> int:
        return sum(self.rows)

    def joined(self, later: RoutedExperts) -> RoutedExperts:
        """Return these rows followed by `later`, which must begin where these end."""
        if later.start != self.start + len(self):
            raise CountMismatchError(
                f"routed experts end at position {self.start + len(self)} but go on at {later.start}"
            )
        return RoutedExperts(self.parts + later.parts, self.rows + later.rows, self.start)

    def decode(self, layers: int | None = None, top_k: int | None = None) -> npt.NDArray[np.int32]:
        """Decode the rows.

        Args:
            layers: Number of layers with experts; the shape is checked against it.
            top_k: Experts chosen per token and layer; the shape is checked against it.

        Returns:
            int32 of shape (rows, layers, top_k) when both are given, else (rows, layers * top_k).

        Raises:
            CountMismatchError: The data does not divide into that shape.
        """
        total = len(self)
        arrays = []
        width: int | None = None
        for part, rows in zip(self.parts, self.rows, strict=True):
            flat = _int32(part)
            if rows == 0 or flat.size % rows:
                if rows == 0 and flat.size == 0:
                    continue
                raise CountMismatchError(f"{flat.size} routed experts do not divide into {rows} rows")
            if width is not None and flat.size // rows != width:
                raise CountMismatchError(f"routed experts rows of width {flat.size // rows} after width {width}")
            width = flat.size // rows
            arrays.append(flat.reshape(rows, width))
        if width is None:
            width = (layers or 0) * (top_k or 0)
        joined = np.concatenate(arrays) if arrays else np.empty((0, width), np.int32)
        if layers is None or top_k is None:
            return joined
        if layers * top_k != width:
            raise CountMismatchError(f"rows hold {width} experts, not {layers} layers x {top_k}")
        return joined.reshape(total, layers, top_k)


def _int32(part: str) -> npt.NDArray[np.int32]:
    try:
        return np.frombuffer(base64.b64decode(part, validate=True), dtype="<i4").astype(np.int32, copy=False)
    except (binascii.Error, ValueError) as error:
        raise MalformedResponseError(f"routed experts are not base64 of int32: {error}") from error
