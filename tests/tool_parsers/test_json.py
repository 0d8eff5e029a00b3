"""Numbers in JSON: the value that was written, or no call."""

from __future__ import annotations

import pytest

from strands_sglang.tool_parsers import HermesToolParser
from strands_sglang.tool_parsers._json import JsonReader
from strands_sglang.tool_parsers.gemma import GemmaToolParser
from strands_sglang.tool_parsers.parsed import CallFault
from strands_sglang.tool_parsers.pythonic import PythonicToolParser

LOST = [
    *("1e-400", "-1e-400", "1E-99999999999999999999", "3e-324", "1.2345e-320", "1e400", "-1e400"),
    "0." + "0" * 400 + "1",
]
HELD = [
    *("0.0", "-0.0", "0e-999", "5e-324", "2.2250738585072014e-308", "1.5e-310", "0.1", "1e308", "0." + "0" * 300 + "1")
]


@pytest.mark.parametrize("digits", LOST)
def test_number_outside_float_range_fails(digits: str) -> None:
    with pytest.raises(CallFault, match=r"too (small|large)"):
        JsonReader(f"[{digits}]").read(0)
    assert not HermesToolParser().parse(f'<tool_call>{{"name": "f", "arguments": {{"a": {digits}}}}}</tool_call>').calls
    assert not PythonicToolParser().parse(f"[f(a={digits})]").calls


@pytest.mark.parametrize("digits", HELD)
def test_number_within_float_range_is_parsed(digits: str) -> None:
    value, _ = JsonReader(f"[{digits}]").read(0)
    assert repr(value) == repr([float(digits)])
    (call,) = PythonicToolParser().parse(f"[f(a={digits})]").calls
    assert repr(call.arguments) == repr({"a": float(digits)})


def test_numbers_of_gemma() -> None:
    parser = GemmaToolParser()
    opening, closing = parser.markers[:2]
    assert len(parser.parse(f"{opening}call:f{{a:5e-324}}{closing}").calls) == 1
    assert len(parser.parse(f"{opening}call:f{{a:1e-400}}{closing}").failures) == 1
