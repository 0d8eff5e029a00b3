"""A witness: the place where two texts that should agree first differ, short enough to read."""

from __future__ import annotations

_BEFORE, _AFTER = 24, 40


def witness(expected: str, found: str, *, tokens: bool = False) -> str:
    """Return where two texts differ: `common ⟦what stood there⟧→⟦what stands there now⟧`.

    Args:
        expected: What was there before.
        found: What is there now.
        tokens: The difference is in the tokens; the texts may agree.
    """
    at = next(
        (number for number, (left, right) in enumerate(zip(expected, found, strict=False)) if left != right),
        min(len(expected), len(found)),
    )
    if tokens and expected == found:
        return "equal text, other tokens: letters on both sides of the join make one token"
    common = expected[max(0, at - _BEFORE) : at]
    return _visible(f"{common}⟦{expected[at : at + _AFTER]}⟧→⟦{found[at : at + _AFTER]}⟧")


def _visible(text: str) -> str:
    return text.replace("\n", "⏎")
