r"""Python literals inside sampled text, read strictly and in place: `1`, `"a\n"`, `[True, {"k": None}]`, `a=1, b="x"`.

Read are strings, whole and finite numbers, `True`, `False`, `None`, lists, dicts with strings as keys, and keyword
arguments; with Python's meaning, so an unknown escape keeps its backslash and a last comma says nothing. There are no
tuples, sets, names, calls, operators, comments, prefixes (`r""`), joined strings (`"a" "b"`) and underscores in
numbers. A reserved word of Python may name an argument: a tool may well have one called `from`.

Invariant: what is read can be written as JSON and encoded as UTF-8, is what Python would make of it, and is the same
on every machine: limits are ours, not those of an interpreter or of how deep its stack already is. Python's own reader
is never used. Time and memory are in proportion to the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from typing import Any

from strands_sglang.tool_parsers.fault import CallFault
from strands_sglang.tool_parsers.parsed import ParseFailure
from strands_sglang.tool_parsers.strict_json import MAX_DEPTH, MAX_DIGITS, unheld

_BLANKS = r"[ \t\n\r\f]*"
_SPACE = re.compile(_BLANKS)
_ITEM = re.compile(
    r"(?:([+-]?(?:0|[1-9][0-9]{0,17})(?![\w.]))"
    r"|([+-]?[0-9]{1,18}(?:\.[0-9]{0,18}(?:[eE][+-]?[0-9]{1,2})?|[eE][+-]?[0-9]{1,2})(?![\w.]))"
    r"|(['\"])([^'\"\\\n\r\0\ud800-\udfff]*)\3(?!\3)"
    r"|(True|False|None)(?!\w))"
    rf"{_BLANKS}([,\])}}]?){_BLANKS}"
)
"""Nearly every value that is no list or dict, with what follows it: one look at the text for one value."""
_AFTER = re.compile(rf"{_BLANKS}([,\])}}]?){_BLANKS}")
_NUMBER = re.compile(
    r"([+-]?(?:0+|[1-9][0-9]*)(?![\w.]))"
    r"|[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)(?![\w.])"
)
_WORD = re.compile(r"(?:True|False|None)(?!\w)")
_KEYWORD = re.compile(rf"(\w*){_BLANKS}((?:=(?!=))?){_BLANKS}")
_KEY = re.compile(rf"(['\"])([^'\"\\\n\r\0\ud800-\udfff]*)\1{_BLANKS}:{_BLANKS}")
_COLON = re.compile(rf"{_BLANKS}(:?){_BLANKS}")
_CUT = re.compile(rf"{_BLANKS}|[+-]?\.?|[+-]?[0-9.]+[eE][+-]?|T(?:ru?)?|F(?:a(?:ls?)?)?|N(?:on?)?")
"""What can stand between a fault and the end of a text that was cut in the middle of a value."""

_WORDS = {"True": True, "False": False, "None": None}
# What a string can be made of, up to what ends it: a backslash takes the next character along, whatever it is.
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


def skip_blanks(text: str, at: int) -> int:
    """Return where the white space that begins at `at` ends; it is what Python allows between brackets."""
    if text[at : at + 1] not in " \t\n\r\f":
        return at
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere


class PythonReader:
    """Reads Python literals that stand in a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, at: int) -> tuple[Any, int]:
        """Read the literal that begins at `at`, or behind white space there.

        Returns:
            The value, and where it ends.

        Raises:
            CallFault: There is no such literal, or none that can be used as it stands.
        """
        at = skip_blanks(self._text, at)
        if self._text.startswith(("[", "{"), at):
            return self._container("]" if self._text[at] == "[" else "}", at + 1)
        return self._scalar(at)

    def read_keywords(self, at: int) -> tuple[dict[str, Any], int]:
        """Read keyword arguments, from behind their opening parenthesis.

        Returns:
            The arguments, and where their closing parenthesis ends.

        Raises:
            CallFault: There are no such arguments, or none that can be used as they stand.
        """
        return self._container(")", at)

    def was_cut(self, fault: CallFault) -> bool:
        """Tell whether a fault of this reader is only that the text ends in the middle of the value."""
        return fault.at is not None and _CUT.fullmatch(self._text, fault.at) is not None

    def _container(self, closing: str, at: int) -> tuple[Any, int]:
        """Read a list, a dict or arguments, from behind what opens them. Calls itself for nothing inside them."""
        text, next_item = self._text, _ITEM.match
        keys: dict[str, None] = {}  # in their order; none in a list
        values: list[Any] = []
        around: list[tuple[dict[str, None], list[Any], str]] = []
        at = skip_blanks(text, at)
        while True:
            # Behind an opening or a comma: one more value, or the end.
            stop, first = at, text[at : at + 1]
            if first != closing:
                if closing != "]":
                    at = self._key(keys, closing, at)
                    first = text[at : at + 1]
                if first == "[" or first == "{":
                    around.append((keys, values, closing))
                    if len(around) == MAX_DEPTH:
                        words = f"The Python value is nested more than {MAX_DEPTH} levels deep"
                        raise CallFault(ParseFailure.INVALID_LITERAL, words, past=at)
                    keys, values, closing = {}, [], "]" if first == "[" else "}"
                    at = skip_blanks(text, at + 1)
                    continue
                if (found := next_item(text, at)) is None:
                    value, at = self._scalar(at)
                    separator, stop, at = self._after(at)
                else:
                    integer, floating, _, value, word, separator = found.groups()
                    if integer is not None:
                        value = int(integer)
                    elif value is None:
                        value = float(floating) if word is None else _WORDS[word]
                    stop, at = found.start(6), found.end()
                values.append(value)
                if separator == ",":
                    continue
                if separator != closing:
                    raise _fault(f"expecting , or {closing}", stop)
            # What ends at `stop` is a value of what is around it, which may end as well.
            while True:
                value = values if closing == "]" else dict(zip(keys, values, strict=True))
                stop += 1
                if not around:
                    return value, stop
                keys, values, closing = around.pop()
                values.append(value)
                if text[stop : stop + 1] != closing:
                    separator, stop, at = self._after(stop)
                    if separator == ",":
                        break
                    if separator != closing:
                        raise _fault(f"expecting , or {closing}", stop)

    def _after(self, at: int) -> tuple[str, int, int]:
        """Return the comma or closing bracket behind a value, its offset, and where the text goes on behind it."""
        found = _AFTER.match(self._text, at)
        assert found is not None  # matches everywhere
        return found[1], found.start(1), found.end()

    def _key(self, keys: dict[str, None], closing: str, at: int) -> int:
        """Read one more key of a dict, or name of an argument; return where its value begins."""
        if closing == ")":
            found = _KEYWORD.match(self._text, at)
            assert found is not None  # matches everywhere
            key = found[1]
            if found.end() == len(self._text):
                raise _fault("expecting an argument", found.end())
            if not found[2] or not key.isidentifier():
                words = "The arguments of a call must be written as name=value"
                raise CallFault(ParseFailure.BAD_ARGUMENTS, words, past=at, at=at)
        elif found := _KEY.match(self._text, at):
            key = found[2]
        else:
            if not self._text.startswith(("'", '"'), at):
                raise _fault("expecting a key of a dict, which is a string in quotes", at)
            key, end = self._string(at)
            found = _COLON.match(self._text, end)
            assert found is not None  # matches everywhere
            if not found[1]:
                raise _fault("expecting : behind a key", found.start(1))
        if key in keys:
            words = f"The key {_shown(key)} stands twice in one {'call' if closing == ')' else 'dict'}"
            raise CallFault(ParseFailure.DUPLICATE_KEY, words, past=at, at=at)
        keys[key] = None
        return found.end()

    def _scalar(self, at: int) -> tuple[Any, int]:
        """Read a value that is neither a list nor a dict."""
        if self._text.startswith(("'", '"'), at):
            return self._string(at)
        if found := _WORD.match(self._text, at):
            return _WORDS[found[0]], found.end()
        found = _NUMBER.match(self._text, at)
        if found is None:
            raise _fault("expecting a string in quotes, a number, a list, a dict, True, False or None", at)
        digits = found[0]
        try:
            if len(digits.lstrip("+-")) > MAX_DIGITS:
                raise ValueError
            value = int(digits) if found[1] else float(digits)
        except ValueError:  # or the process has a lower limit of its own
            raise _fault(f"a number has {len(digits)} digits, which is too many", at) from None
        if isinstance(value, float) and (fault := unheld(value, digits)):
            raise _fault(f"a number is {fault}", at)
        return value, found.end()

    def _string(self, at: int) -> tuple[str, int]:
        """Read the string whose first quote stands at `at`."""
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
            raise _fault("a string holds half of a surrogate pair", at)
        return string, end + len(quote)


def _open_string(text: str, quote: str, end: int) -> CallFault:
    """Return what is wrong with a string that goes on up to `end` and has no closing quote there."""
    if text.startswith(("\0", "\\\0"), end):
        return _fault("a string holds the character U+0000, which must be written as \\x00", end)
    if text.startswith(("\n", "\r"), end):
        return _fault(f"a string in {quote} must end in the line it begins in; write a line break as \\n", end)
    return _fault(f"a string has no closing {quote}", len(text))


def _unescaped(start: int, found: re.Match[str]) -> str:
    """Return what an escape, or a line break as it stands, means in a string whose words begin at `start`."""
    word = found[1]
    if word is None:
        return "\n"
    if word in _PLAIN_ESCAPES:
        return _PLAIN_ESCAPES[word]
    try:
        if word[0] in "01234567":
            return chr(int(word, 8))
        if word[0] in "xuU":
            return chr(int(word[1:], 16))
        if word[0] == "N" and len(character := unicodedata.lookup(word[2:-1])) == 1:
            return character
    except (KeyError, ValueError, OverflowError):
        pass
    if word[0] in "xuUN":
        raise _fault(f"the escape {_shown(found[0])} means no character", start + found.start())
    return found[0]


def _fault(words: str, at: int) -> CallFault:
    return CallFault(ParseFailure.INVALID_LITERAL, f"The Python value is not valid: {words}", past=at, at=at)


def _shown(string: str) -> str:
    return ascii(string)[:60]
