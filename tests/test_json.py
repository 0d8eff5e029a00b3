"""JSON that is written comes back as it was, and JSON of others is read as it is meant."""

from __future__ import annotations

from typing import Any

import pytest

from strands_sglang._json import dump_text, load_text, loads_exactly


@pytest.mark.parametrize(
    "value",
    [(1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 10**19 - 1, 10**400, -0.0, 1.0, 1e22, 5e-324, "1" * 30, "\ud800", None],
    ids=repr,
)
def test_what_is_written_comes_back(value: Any) -> None:
    found = load_text(dump_text({"a": [value]}))["a"][0]
    assert (type(found), repr(found)) == (type(value), repr(value))


@pytest.mark.parametrize("text", ["", "{", "nul", "01", "[1]]", "\ud800", "[" * 100_000, "1" * 5000])
def test_what_is_no_json_is_told(text: str) -> None:
    with pytest.raises(ValueError):
        loads_exactly(text)
    assert load_text(text) is None
