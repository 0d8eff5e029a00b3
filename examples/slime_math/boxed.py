r"""The answer in the last `\boxed{}` of a text, and whether it is the right one.

    is_right(r"So it is \boxed{\frac{84}{2}}.", "42")   # True

Numbers are compared as numbers, exactly: whole ones, decimals, fractions, mixed numbers, powers, with signs, thousands
separators, units, degrees, percent and currency signs. Everything else is compared as LaTeX, without parts that do not
change its meaning. Nothing else is evaluated, so no text can take long or run code.

Invariant: an answer that is not in a box does not count; two answers are equal only if both are the same number, or the
same LaTeX.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_MARK = re.compile(
    r"\\(?:boxed|fbox)(?:\s*(?P<box>\{)|\s*(?P<bare>-?\d+(?:\.\d+)?)|\s+(?P<letter>[A-Za-z])(?![A-Za-z]))|\\.|[{}]",
    re.DOTALL,
)
_SPACES = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|thinspace|medspace|,)(?![A-Za-z])|~|\s+")
_DECORATION = re.compile(
    r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|displaystyle|textstyle|limits|nolimits)(?![A-Za-z])"
)
_DELIMITERS = re.compile(r"\\[\[\]()]|\$")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|rm|bf)\s*\{([^{}]*)\}")
_SIGNS = re.compile(r"\\(?:circ|degree|%|\$)|\^\{?\\(?:circ|degree)\}?|°|%|€|£")
_UNIT = (
    r"(?:square|cubic|sq\.?)?\s*(?:mm|cm|km|meters?|centimeters?|inch(?:es)?|feet|ft|miles?|units?|degrees?|dollars?|cents?"
    r"|seconds?|minutes?|hours?|days?|years?|people|ways|points?|grams?|kg|percent|liters?)"
)
_UNITS = re.compile(rf"(?<=[\d}}]){_UNIT}(?:\^\{{?[23]\}}?)?$", re.IGNORECASE)
_UPRIGHT_UNITS = re.compile(  # a single letter is a unit only if it is set upright
    rf"(?<=[\d}}\s,~])\\(?:text|textrm|mathrm|mbox|rm)\s*\{{\s*(?:{_UNIT}|m|g|s)\.?\s*\}}(?:\^\{{?[23]\}}?)?\s*$",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"^(?:[A-Za-z](?:_\{?\w+\}?)?(?:\([A-Za-z]\))?|answer|theansweris|ans)(?:=|\\approx|:)", re.IGNORECASE
)
_THOUSANDS = re.compile(r"^([-+]?\d{1,3}(?:(?:,|\{,\})\d{3})+)(\.\d+)?$")
_SHORT_FRACTION = re.compile(r"\\frac(?:(\d)(\d)|\{([^{}]*)\}(\d)|(\d)\{([^{}]*)\})")
_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_PLAIN = re.compile(rf"^([-+]?)({_NUMBER})(?:(?:e|E)([-+]?\d+))?$")
_RATIO = re.compile(rf"^([-+]?)\(?({_NUMBER})\)?/\(?([-+]?{_NUMBER})\)?$")
_FRACTION = re.compile(rf"^([-+]?)(\d*)\\frac\{{([-+]?{_NUMBER})\}}\{{([-+]?{_NUMBER})\}}$")
_POWER = re.compile(rf"^([-+]?)(?:({_NUMBER})(?:\\times|\\cdot|\*|×|·))?({_NUMBER})\^\{{?([-+]?\d+)\}}?$")
_LONGEST = 1000  # characters; longer answers are compared unchanged, and no dataset has one
_HIGHEST = 200  # largest exponent that is computed


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{...}` of a text; None if there is none.

    Of nested boxes the outermost counts. The text is read in one pass, because models can repeat themselves at length.
    """
    found: tuple[int, int] | None = None
    opened: list[int | None] = []
    """For each open brace, where its content begins if it belongs to a box; None for other braces."""
    for mark in _MARK.finditer(text):
        bare = "bare" if mark["bare"] else "letter" if mark["letter"] else None
        if bare is not None:  # \boxed 7
            found = mark.span(bare)
        elif mark["box"]:
            opened.append(mark.end())
        elif mark[0] == "{":
            opened.append(None)
        elif mark[0] == "}" and opened:
            begin = opened.pop()
            if begin is not None:
                found = begin, mark.start()
    return None if found is None else text[found[0] : found[1]]


def normal(answer: str) -> Fraction | str | tuple[Fraction | str, ...]:
    """Return an answer in the form in which it is compared: a number, a tuple of them, or LaTeX."""
    if len(answer) > _LONGEST:
        return answer
    text = unicodedata.normalize("NFKC", answer).replace("−", "-").replace("–", "-").strip()
    while (nested := last_boxed(text)) is not None and text in (rf"\boxed{{{nested}}}", rf"\fbox{{{nested}}}"):
        text = nested.strip()
    text = _DELIMITERS.sub("", text.replace(r"\$", "").replace(r"\%", "%"))
    text = _DECORATION.sub("", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _WORDS.sub(r"\1", _UPRIGHT_UNITS.sub("", text))
    text = _SPACES.sub("", text)
    text = _NAMED.sub("", text)
    text = _SIGNS.sub("", text).rstrip(".,;:")
    text = _UNITS.sub("", text)
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    text = _unwrapped(text)
    number = _number(text)
    if number is not None:
        return number
    parts = _parts(text)
    if parts:
        return tuple(_number(part) if _number(part) is not None else part for part in parts)  # type: ignore[misc]
    return text


def is_right(text: str, answer: object) -> bool:
    """Return whether the last box of a text holds an answer.

    Args:
        text: Final text of the agent.
        answer: The right answer, with or without a box around it.
    """
    given = last_boxed(text)
    return given is not None and given.strip() != "" and normal(given) == normal(str(answer))


def _long_fraction(found: re.Match[str]) -> str:
    """Return a fraction without braces as one with both of them."""
    above, below = [part for part in found.groups() if part is not None]
    return rf"\frac{{{above}}}{{{below}}}"


def _unwrapped(text: str) -> str:
    """Remove braces or parentheses that enclose the whole text."""
    while len(text) > 1 and text[0] + text[-1] in ("{}", "()") and "," not in text:
        depth = 0
        for at, letter in enumerate(text):
            depth += (letter in "{(") - (letter in "})")
            if depth == 0 and at < len(text) - 1:
                return text
        text = text[1:-1]
    return text


def _number(text: str) -> Fraction | None:
    """Return the number in a text; None if it is not a number, or too large to compute."""
    thousands = _THOUSANDS.match(text)
    if thousands:
        text = re.sub(r"[,{}]", "", thousands[1]) + (thousands[2] or "")
    if found := _PLAIN.match(text):
        sign, value, exponent = found.groups()
        if exponent is not None and abs(int(exponent[:6])) > _HIGHEST:
            return None
        return _signed(sign, Fraction(f"{value}e{exponent or 0}"))
    if found := _RATIO.match(text):
        sign, above, below = found.groups()
        return _signed(sign, Fraction(above) / Fraction(below)) if Fraction(below) else None
    if found := _FRACTION.match(text):
        sign, whole, above, below = found.groups()
        if not Fraction(below):
            return None
        part = Fraction(above) / Fraction(below)
        return _signed(sign, int(whole) + part if whole else part)
    if found := _POWER.match(text):
        sign, factor, base, exponent = found.groups()
        power, root = int(exponent[:6]), Fraction(base)
        if abs(power) > _HIGHEST or len(base) > 20 or (power < 0 and not root):
            return None
        return _signed(sign, Fraction(factor or 1) * root**power)
    return None


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _parts(text: str) -> list[str]:
    """Return the parts of a tuple, or of a list with commas; [] if it is neither."""
    inner = text[1:-1] if len(text) > 1 and text[0] + text[-1] == "()" else text
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(inner):
        depth += (letter in "{([") - (letter in "})]")
        if letter == "," and depth == 0:
            parts.append(inner[begin:at])
            begin = at + 1
    parts.append(inner[begin:])
    return [_SHORT_FRACTION.sub(_long_fraction, part) for part in parts] if len(parts) > 1 and all(parts) else []
