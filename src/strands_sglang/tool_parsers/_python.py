r"""Python literals inside sampled text, read strictly and in place: `1`, `"a\n"`, `[True, {"k": None}]`, `a=1, b="x"`.

Supported are strings, integers, finite floats, `True`, `False`, `None`, lists, dicts with string keys, and keyword
arguments, all with Python's meaning: an unknown escape keeps its backslash, and a trailing comma is allowed. Not
supported are tuples, sets, names, calls, operators, comments, prefixes (`r""`), implicit concatenation (`"a" "b"`) and
underscores in numbers. A reserved word may name an argument, because a tool may have one called `from`.

Invariant: a value that is read can be written as JSON and encoded as UTF-8, equals what Python would read, and is the
same on every machine: the limits are this module's, not the interpreter's. Python's own parser is never used. Time and
memory are proportional to the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from typing import Any, ClassVar

from strands_sglang.tool_parsers._containers import ContainerReader, invalid_literal
from strands_sglang.tool_parsers._json import MAX_DIGITS, float_problem
from strands_sglang.tool_parsers.parsed import CallFault, ParseFailure

_BLANKS = r"[ \t\n\r\f]*"
_SPACE = re.compile(_BLANKS)
_AFTER = re.compile(rf"{_BLANKS}([,\])}}]?){_BLANKS}")
_NUMBER = re.compile(
    r"([+-]?(?:0+|[1-9][0-9]*)(?![\w.]))"
    r"|[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)(?![\w.])"
)
_CONSTANT = re.compile(r"(?:True|False|None)(?!\w)")
_KEYWORD = re.compile(rf"(\w*){_BLANKS}((?:=(?!=))?){_BLANKS}")
_COLON = re.compile(rf"{_BLANKS}(:?){_BLANKS}")
_CUT = re.compile(rf"{_BLANKS}|[+-]?\.?|[+-]?[0-9.]+[eE][+-]?|T(?:ru?)?|F(?:a(?:ls?)?)?|N(?:on?)?")

_CONSTANTS = {"True": True, "False": False, "None": None}
# The content of a string up to its end; a backslash escapes the next character, whatever it is.
_BODIES = {
    "'": re.compile(r"[^'\\\n\r\0]*(?:\\(?:\r\n|[^\0])[^'\\\n\r\0]*)*"),
    '"': re.compile(r'[^"\\\n\r\0]*(?:\\(?:\r\n|[^\0])[^"\\\n\r\0]*)*'),
    "'''": re.compile(r"[^'\\\0]*(?:(?:\\[^\0]|'(?!''))[^'\\\0]*)*"),
    '"""': re.compile(r'[^"\\\0]*(?:(?:\\[^\0]|"(?!""))[^"\\\0]*)*'),
}
_ESCAPE = re.compile(
    r"\\(\r\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|.)|\r\n?", re.DOTALL
)
_PLAIN_ESCAPES = dict(zip("\\'\"abfnrtv", "\\'\"\a\b\f\n\r\t\v", strict=True)) | {"\n": "", "\r": "", "\r\n": ""}
_SURROGATE = re.compile("[\ud800-\udfff]")
_fault = partial(invalid_literal, "The Python value is")


def skip_blanks(text: str, at: int) -> int:
    if text[at : at + 1] not in " \t\n\r\f":
        return at
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere


class PythonReader(ContainerReader):
    subject: ClassVar[str] = "The Python value is"
    blanks: ClassVar[re.Pattern[str]] = _SPACE
    after: ClassVar[re.Pattern[str]] = _AFTER
    last_comma: ClassVar[bool] = True

    def read(self, at: int) -> tuple[Any, int]:
        at = skip_blanks(self._text, at)
        if self._text.startswith(("[", "{"), at):
            return self._container("]" if self._text[at] == "[" else "}", at + 1)
        return self._scalar(at)

    def read_keywords(self, at: int) -> tuple[dict[str, Any], int]:
        """Read keyword arguments after their opening parenthesis; return the offset after the closing one."""
        return self._container(")", at)

    def was_cut(self, fault: CallFault) -> bool:
        return fault.at is not None and _CUT.fullmatch(self._text, fault.at) is not None

    def _value(self, at: int) -> tuple[Any, str, int, int]:
        value, past = self._scalar(at)
        return value, *self._after(past)

    def _key(self, keys: dict[str, None], closing: str, at: int) -> int:
        if closing == ")":
            found = _KEYWORD.match(self._text, at)
            assert found is not None  # matches everywhere
            key = found[1]
            if found.end() == len(self._text):
                raise _fault("expecting an argument", found.end())
            if not found[2] or not key.isidentifier():
                message = "The arguments of a call must be written as name=value"
                raise CallFault(ParseFailure.BAD_ARGUMENTS, message, past=at, at=at)
        else:
            if not self._text.startswith(("'", '"'), at):
                raise _fault("expecting a key of a dict, which is a string in quotes", at)
            key, end = self._string(at)
            found = _COLON.match(self._text, end)
            assert found is not None  # matches everywhere
            if not found[1]:
                raise _fault("expecting : after a key", found.start(1))
        if key in keys:
            message = f"The key {_quoted(key)} occurs twice in one {'call' if closing == ')' else 'dict'}"
            raise CallFault(ParseFailure.DUPLICATE_KEY, message, past=at, at=at)
        keys[key] = None
        return found.end()

    def _scalar(self, at: int) -> tuple[Any, int]:
        if self._text.startswith(("'", '"'), at):
            return self._string(at)
        if found := _CONSTANT.match(self._text, at):
            return _CONSTANTS[found[0]], found.end()
        found = _NUMBER.match(self._text, at)
        if found is None:
            raise _fault("expecting a string in quotes, a number, a list, a dict, True, False or None", at)
        digits = found[0]
        try:
            if len(digits.lstrip("+-")) > MAX_DIGITS:
                raise ValueError
            value = int(digits) if found[1] else float(digits)
        except ValueError:  # or this process has a lower limit
            raise _fault(f"a number has {len(digits)} digits, which is too many", at) from None
        if isinstance(value, float) and (fault := float_problem(value, digits)):
            raise _fault(f"a number is {fault}", at)
        return value, found.end()

    def _string(self, at: int) -> tuple[str, int]:
        text = self._text
        quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
        start = at + len(quote)
        end = _BODIES[quote].match(text, start).end()  # type: ignore[union-attr]  # matches everywhere
        if not text.startswith(quote, end):
            raise _open_string(text, quote, end)
        string = text[start:end]
        if "\\" in string or "\r" in string:
            string = _ESCAPE.sub(partial(_unescaped, start), string)
        if not string.isascii() and _SURROGATE.search(string):
            raise _fault("a string contains a lone surrogate", at)
        return string, end + len(quote)


def _open_string(text: str, quote: str, end: int) -> CallFault:
    if text.startswith(("\0", "\\\0"), end):
        return _fault("a string contains the character U+0000, which must be written as \\x00", end)
    if text.startswith(("\n", "\r"), end):
        return _fault(f"a string in {quote} must end in the line it begins in; write a line break as \\n", end)
    return _fault(f"a string has no closing {quote}", len(text))


def _unescaped(start: int, found: re.Match[str]) -> str:
    escape = found[1]
    if escape is None:
        return "\n"
    if escape in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[escape]
    try:
        if escape[0] in "01234567":
            return chr(int(escape, 8))
        if escape[0] in "xuU":
            return chr(int(escape[1:], 16))
        if escape[0] == "N" and len(character := unicodedata.lookup(escape[2:-1])) == 1:
            return character
    except (KeyError, ValueError, OverflowError):
        pass
    if escape[0] in "xuUN":
        raise _fault(f"the escape {_quoted(found[0])} means no character", start + found.start())
    return found[0]


def _quoted(string: str) -> str:
    return ascii(string)[:60]
