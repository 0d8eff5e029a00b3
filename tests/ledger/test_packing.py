from __future__ import annotations

import math
import struct
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.ledger import encoding as packing
from strands_sglang.ledger.encoding import packed, unpacked

INTEGERS = st.lists(
    st.one_of(
        st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1), st.integers(0, 2**31 - 1), st.integers(-(2**31), -1)
    )
).map(lambda values: array("i", values))
DOUBLES = st.one_of(
    st.lists(st.floats(width=32)), st.lists(st.floats()), st.lists(st.sampled_from([-0.0, 0.0, -1e-45, 1e-300]))
).map(lambda values: array("d", values))
BYTES = st.binary().map(lambda values: array("B", values))
ARRAYS = st.dictionaries(st.text(), st.one_of(INTEGERS, DOUBLES, BYTES), max_size=5)


def memory(arrays: dict[str, array[Any]]) -> list[tuple[str, str, bytes]]:
    return [(name, values.typecode, values.tobytes()) for name, values in arrays.items()]


@settings(max_examples=500)
@given(ARRAYS)
def test_arrays_are_restored_bit_for_bit(arrays: dict[str, array[Any]]) -> None:
    blob, shapes = packed(arrays)
    assert memory(unpacked(blob, shapes)) == memory(arrays)
    assert memory(unpacked(memoryview(blob), tuple(map(tuple, shapes)))) == memory(arrays)


@pytest.mark.parametrize(
    ("values", "code", "size"),
    [
        (array("i", [0, 65535]), "i2", 4),
        (array("i", [0, 65536]), "i3", 6),
        (array("i", [2**24 - 1]), "i3", 3),
        (array("i", [2**24]), "i4", 4),
        (array("i", [-1]), "i4", 4),
        (array("d", [-0.0, float(np.float32(-0.1)), math.inf, -math.inf, math.nan]), "d4", 20),
        (array("d", [-0.1]), "d8", 8),
        (array("d", [1e300]), "d8", 8),
        (array("d", [struct.unpack("<d", b"\1\0\0\0\0\0\xf0\x7f")[0]]), "d8", 8),  # NaN with a payload
        (array("B", b"abc"), "B1", 3),
        (array("B", b"abcd"), "B4", 4),
        (array("i"), "i2", 0),
    ],
)
def test_smallest_code_is_chosen(values: array[Any], code: str, size: int) -> None:
    blob, shapes = packed({"x": values})
    assert (shapes, len(blob)) == ([["x", code, len(values)]], size)
    assert unpacked(blob, shapes)["x"].tobytes() == values.tobytes()


def test_byte_planes_start_with_the_lowest_byte() -> None:
    assert packed({"x": array("i", [0x010203, 0x040506])})[0] == bytes([3, 6, 2, 5, 1, 4])
    assert packed({"x": array("d", [1.0, -2.0])})[0] == bytes([0, 0, 0, 0, 0x80, 0, 0x3F, 0xC0])


def test_big_endian_machine_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values with swapped bytes, as on a big-endian machine, are packed and unpacked as the same bytes."""
    ids, logprobs = array("i", [7, 70000, 2**31 - 1]), array("d", [-0.5, -0.1])
    expected = packed({"ids": ids, "logprobs": logprobs})
    monkeypatch.setattr(packing, "_SWAPPED", True)
    turned = array("i", ids)
    turned.byteswap()
    blob, _ = packed({"ids": turned})
    assert blob == expected[0][: len(blob)]
    back = unpacked(*expected)
    for values in back.values():
        values.byteswap()
    assert back == {"ids": ids, "logprobs": logprobs}


@pytest.mark.parametrize("values", [array("f", [1.0]), [1, 2], b"12", np.zeros(2, np.int32)])
def test_other_types_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="array 'x'"):
        packed({"x": values})


@pytest.mark.parametrize(
    "shapes",
    [
        None,
        "x",
        [["x", "i3"]],
        ["xyz"],
        [[1, "i3", 2]],
        [["x", "i3", 2.0]],
        [["x", "i3", True], ["y", "B1", 3]],
        [["x", "i3", -2], ["y", "B1", 12]],
        [["x", "i5", 1]],
        [["x", 3, 2]],
        [["x", None, 2]],
        [["x", "i3", 1]],
        [["x", "i3", 3]],
        [["x", "i3", 1], ["x", "i3", 1]],
        [["x", "B4", 6]],
        [["x", "i3", 10**30]],
        [["x", "d8", 1]],
        [],
        [{"x": 1}],
    ],
)
def test_wrong_shapes_are_refused(shapes: Any) -> None:
    blob, right = packed({"x": array("i", [70000, 1])})
    assert right == [["x", "i3", 2]]
    with pytest.raises(ValueError):
        unpacked(blob, shapes)


@given(ARRAYS, st.data())
def test_changed_size_is_refused(arrays: dict[str, array[Any]], data: st.DataObject) -> None:
    blob, shapes = packed(arrays)
    if blob:
        with pytest.raises(ValueError):
            unpacked(blob[: data.draw(st.integers(0, len(blob) - 1))], shapes)
    with pytest.raises(ValueError):
        unpacked(blob + b"\0", shapes)
