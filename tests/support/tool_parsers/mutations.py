"""Outputs for parsers to choke on: well-formed turns, and what becomes of them when something goes wrong.

A turn is made by a family's writer (`grammars.py`) from random calls, and then damaged the way sampled text is: cut,
stuttered, quoted wrongly, mixed with another family's words. Everything is drawn from one `random.Random`, so a seed
gives the same inputs again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from support.tool_parsers.grammars import GRAMMARS, SCHEMAS, Call, Grammar

T = TypeVar("T")

THINKING = ("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>analysis<|message|>", "<|end|>")
"""What opens and closes reasoning, in one family or another."""

WORDS = tuple(dict.fromkeys(word for grammar in GRAMMARS.values() for word in grammar.words))
"""The markers of every family."""

ATOMS = (
    *"{}[]()<>\"'`:;,.=\\/|_-+ \n\t\r\0",
    *("null", "true", "false", "None", "True", "False", "NaN", "-Infinity", "Infinity", "nan", "inf"),
    *("0", "-0", "01", "1.0", "1e5", "1E400", "-1", "0x10", "1_000", "9" * 25, "1" * 5000, "1.", ".5", "--1", "1j"),
    *('"', "'", '\\"', "\\'", '"""', "'''", "\\", "\\\\", "\\n", "\\x41", "\\u0041", "\\ud83d", "\\u12"),
    *(
        *("\\ud83d\\ude00", "\ud800", "\udfff", "é", "e\u0301", "😀", "\u2028", "\u00a0", "\u200b", "\ufeff", "\x7f"),
        "\x85",
    ),
    *("｜", "▁", "İ", "{}", "[]", '""', "''", '{"a": 1}', '{"a": 1, "a": 2}', "[1, 2]", '"a": 1', '"a"', "a=1", "a="),
    *("**a", "*a", "b''", '"name"', '"arguments"', '"parameters"', '"id"', '{"name": "f", "arguments": {}}'),
    *("name", "arguments", "parameters", "function", "functions.", "calculator", "ping", "call:", ":0", "to=", "json"),
    *('{"name": "f", "parameters": {}}', 'string="true"', 'string="false"', "```", "```json", "```\n", "//", "/*", "#"),
    *("&lt;", "&amp;", "<![CDATA[", "<br>", " " * 50, "\n\n\n"),
    *("[" * 120, "]" * 120, "{" * 120, '{"a":' * 120, "(" * 120),
)
"""What JSON, Python and tags are made of, and what breaks them."""

_PIECES = re.compile(r'<[^<>\s]{1,40}>|\[[A-Z_/]+\]|\w+|\s+|"|.', re.DOTALL)
_PAIR = re.compile(r'"?\w{1,20}"? ?[:=] ?(?:"[^"]{0,99}"|\'[^\']{0,99}\'|[^\s,{}\[\]"\']{1,30}|\{\}|\[\]),\s?')
"""A key, its value and the comma behind it, in JSON and in Python."""

_STRINGS = (
    *("", " ", "\n", "12*7+3", "123", "-1.5", "true", "True", "null", "None", "NaN", "{}", "[]", '"', "'", "\\", "a b"),
    *("line\nline", "\n  indented", "trailing \n", "\ttab", "tab\t", "é", "😀", "e\u0301", "\u2028", "\u00a0"),
    *("\u200b", 'say "hi"', "it's", "back\\slash", "\\n", "\\u0041", "C:\\new", "a=b", "a, b", "f(x)", "x)", "]", "}"),
    *("```", "a:b", '{"a": 1}', '{"name": "f", "arguments": {}}', "[1, 2]", "<b>", "</b>", "&lt;", "1 < 2 > 0"),
    *("if a < b:", "<", ">", "a;b", "日本語", "\x7f", "\u0001", "#!/bin/sh\necho '$1' | sed \"s/a/b/\"\n"),
    "def f(x):\n    return x\n",
)
_SAFE = tuple(string for string in _STRINGS if not re.search(r"[<>\[\]{}|]", string))
_NUMBERS = (0, 1, -1, 7, 10**6, 2**53 + 1, -(2**63), 10**30, 0.5, -1.5, 1e-7, 1e22, 3.0, -0.0, 1.7976931348623157e308)
_KEYS = ("a", "b", "key", "a b", "é", "", "name", "arguments", '"', "\n", "😀", "x.y", "a:b")


def pick(dice: Random, choices: Sequence[T]) -> T:
    """Return one of some choices; `Random.choice` takes twice as long."""
    return choices[int(dice.random() * len(choices))]


def value(dice: Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = dice.random()
    if kind < 0.35:
        return string(dice)
    if kind < 0.6:
        return pick(dice, _NUMBERS)
    if kind < 0.75 or depth > 3:
        return pick(dice, (True, False, None))
    if kind < 0.88:
        return [value(dice, depth + 1) for _ in range(int(dice.random() * 4))]
    return {pick(dice, _KEYS): value(dice, depth + 1) for _ in range(int(dice.random() * 4))}


def string(dice: Random, plain: bool = False) -> str:
    """Return a string, now and then one with a marker in it unless it must be plain."""
    made = pick(dice, _SAFE if plain else _STRINGS)
    if dice.random() < 0.2:
        made += pick(dice, _SAFE if plain else _STRINGS)
    if not plain and dice.random() < 0.15:
        made += pick(dice, WORDS + THINKING)
    return made


def call(dice: Random, grammar: Grammar) -> Call:
    """Return a call of one of the tools in `SCHEMAS`, with values of the types that its schema names."""
    name = pick(dice, tuple(SCHEMAS))
    arguments = {}
    for key, schema in SCHEMAS[name].get("properties", {}).items():
        if dice.random() < 0.6:
            arguments[key] = _of(dice, schema, grammar)
    if dice.random() < 0.1:
        arguments["undeclared"] = _text(dice, grammar)
    return Call(name, arguments)


def _text(dice: Random, grammar: Grammar) -> str:
    made = string(dice)
    while not grammar.writes(made):
        made = string(dice, plain=True)
    return made


def _of(dice: Random, schema: Any, grammar: Grammar) -> Any:
    types = schema.get("type")
    if types == "string":
        return _text(dice, grammar)
    made: Any = None
    while True:
        if types == "integer":
            made = pick(dice, [number for number in _NUMBERS if isinstance(number, int)])
        elif types == "number":
            made = pick(dice, _NUMBERS)
        elif types == "boolean":
            made = dice.random() < 0.5
        elif types == "null":
            made = None
        elif types == "array":
            made = [value(dice, 1) for _ in range(int(dice.random() * 4))]
        elif types == "object":
            made = {pick(dice, _KEYS): value(dice, 1) for _ in range(int(dice.random() * 4))}
        elif "enum" in schema:
            made = pick(dice, schema["enum"])
        else:  # a string or something else: only strings that look like nothing else
            made = pick(dice, (7, None) if "integer" in str(types) else ("words", None, "two words"))
            made = pick(dice, (made, "words")) if made is not None or "null" in str(schema) else "words"
        if grammar.writes(made):
            return made


def turn(dice: Random, grammar: Grammar) -> tuple[str, list[Call]]:
    """Return a well-formed turn of a family, and the calls in it."""
    calls = [call(dice, grammar) for _ in range(1 + int(dice.random() ** 2 * 4))]
    if not grammar.parallel:
        del calls[1:]
    return grammar.write(calls, dice), calls


def tokens(dice: Random, grammar: Grammar, words: Iterable[str], chance: float = 0.7) -> tuple[str, ...]:
    """Return some words of a format, to be the tokens of a tokenizer: such that stand on their own."""
    known = sorted(words)
    single = [word for word in known if not any(other in word for other in known if other != word)]
    drawn = {word for word in single if not word[0].isalnum() and dice.random() < chance}
    if drawn.intersection(grammar.dialects):
        drawn.update(grammar.dialects)
    return tuple(sorted(drawn))


class Mutator:
    """Damages well-formed turns of one family."""

    def __init__(self, grammar: Grammar, dice: Random, seeds: int = 200) -> None:
        self._dice = dice
        self._own = [turn(dice, grammar)[0] for _ in range(seeds)]
        self._others = [turn(dice, other)[0] for other in GRAMMARS.values() for _ in range(8)]
        self._words = grammar.words or WORDS
        self._steps: tuple[Callable[[str], str], ...] = (
            *(self._delete, self._delete, self._delete_piece, self._delete_piece, self._duplicate, self._swap),
            *(self._insert_word, self._insert_word, self._insert_atom, self._insert_atom, self._replace_piece),
            *(self._cut, self._cut_front, self._splice, self._splice_other, self._nest, self._think, self._case),
            *(self._repeat, self._repeat, self._repeat_key),
        )

    def next(self) -> str:
        """Return one damaged turn; one in twenty is whole."""
        dice = self._dice
        text = pick(dice, self._own)
        for _ in range(int(dice.random() ** 2 * 5) + (dice.random() < 0.95)):
            text = pick(dice, self._steps)(text)
        return text[:4000] if len(text) < 6000 else text[: int(dice.random() * 6000)]

    def _place(self, text: str) -> int:
        return int(self._dice.random() * (len(text) + 1))

    def _span(self, text: str, longest: int = 12) -> tuple[int, int]:
        start = self._place(text)
        return start, min(len(text), start + 1 + int(self._dice.random() ** 2 * longest))

    def _piece(self, text: str) -> tuple[int, int]:
        found = _PIECES.search(text, self._place(text))
        return found.span() if found else (len(text), len(text))

    def _delete(self, text: str) -> str:
        start, end = self._span(text)
        return text[:start] + text[end:]

    def _delete_piece(self, text: str) -> str:
        start, end = self._word(text) if self._dice.random() < 0.5 else self._piece(text)
        return text[:start] + text[end:]

    def _word(self, text: str) -> tuple[int, int]:
        """Return where one of the family's markers stands."""
        word = pick(self._dice, self._words)
        start = text.find(word, self._place(text))
        if start < 0:
            start = text.find(word)
        return (start, start + len(word)) if start >= 0 else self._piece(text)

    def _duplicate(self, text: str) -> str:
        start, end = self._span(text, 60) if self._dice.random() < 0.5 else self._word(text)
        return text[:end] + text[start:]

    def _repeat(self, text: str) -> str:
        """Write twice what begins with a marker and ends where the same one stands again: a parameter, a call."""
        start, end = self._word(text)
        again = text.find(text[start:end], end) if end > start else -1
        return text[:again] + text[start:] if again >= 0 else text

    def _repeat_key(self, text: str) -> str:
        found = _PAIR.search(text, self._place(text)) or _PAIR.search(text)
        return text[: found.end()] + text[found.start() :] if found else text

    def _swap(self, text: str) -> str:
        a, b, c, d = sorted((*self._piece(text), *self._word(text)))
        return text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]

    def _insert_word(self, text: str) -> str:
        word = pick(self._dice, self._words if self._dice.random() < 0.85 else WORDS)
        if self._dice.random() < 0.15:
            word = word[: self._place(word)]
        return self._insert(text, word)

    def _insert_atom(self, text: str) -> str:
        return self._insert(text, pick(self._dice, ATOMS))

    def _insert(self, text: str, new: str) -> str:
        at = self._place(text) if self._dice.random() < 0.5 else self._piece(text)[0]
        return text[:at] + new + text[at:]

    def _replace_piece(self, text: str) -> str:
        start, end = self._piece(text)
        new = pick(self._dice, ATOMS) if self._dice.random() < 0.7 else pick(self._dice, self._words)
        return text[:start] + new + text[end:]

    def _cut(self, text: str) -> str:
        return text[: self._place(text)]

    def _cut_front(self, text: str) -> str:
        return text[self._place(text) :]

    def _splice(self, text: str) -> str:
        other = pick(self._dice, self._own)
        return text[: self._place(text)] + other[self._place(other) :]

    def _splice_other(self, text: str) -> str:
        other = pick(self._dice, self._others)
        at = self._place(text)
        return text[:at] + other[self._place(other) :] + (text[at:] if self._dice.random() < 0.5 else "")

    def _nest(self, text: str) -> str:
        """Put a whole turn into this one, as a model does that quotes what it was shown."""
        at = self._place(text)
        return text[:at] + pick(self._dice, self._own) + text[at:]

    def _think(self, text: str) -> str:
        opening, closing = pick(self._dice, (THINKING[:2], THINKING[2:4], THINKING[4:]))
        chance = self._dice.random()
        if chance < 0.4:
            return f"{opening}hm{closing}{text}"
        if chance < 0.6:
            return f"{opening}{text}"
        if chance < 0.8:
            at = self._place(text)
            return f"{text[:at]}{closing}{text[at:]}"
        return self._insert(text, opening)

    def _case(self, text: str) -> str:
        start, end = self._word(text)
        return text[:start] + text[start:end].swapcase() + text[end:]


def slow_shapes(dice: Random, grammar: Grammar, markers: Iterable[str]) -> Iterator[Callable[[int], str]]:
    """Yield functions that make texts of a given size that may be slow to parse: a head, a repeated part, a tail."""
    words = [*dict.fromkeys((*markers, *grammar.words))]
    fills = [
        *words,
        *(word[:-1] for word in words if len(word) > 1),
        *"a \n[{(\"'\\<1é|=",
        *('{"a":', "[[", '{"a":"', "\\u00e9", '"a":1,', "1,", "a=1,", '"\\', "a='", "'''", "f(", "[f("),
        *("{}", "[]", "[],", "{},", '""', '"",'),
    ]

    def repeated(head: str, unit: str, tail: str) -> Callable[[int], str]:
        return lambda size: head + unit * ((size - len(head) - len(tail)) // len(unit) + 1) + tail

    for word in words:
        yield repeated("", word, "")
        for follower in ('{"a":"', '["', "[" * 90, "f\n{"):
            yield repeated("", word + follower, "")
    for fill in fills:
        yield repeated("", fill, "")
    while True:
        text, _ = turn(dice, grammar)
        head, tail = text[: int(dice.random() * len(text))], text[int(dice.random() * len(text)) :]
        unit = pick(dice, fills) if dice.random() < 0.6 else pick(dice, fills) + pick(dice, fills)
        chance = dice.random()
        if chance < 0.4:
            yield repeated(head, unit, tail if dice.random() < 0.5 else "")
        elif chance < 0.7:
            yield repeated("", head + unit, tail)
        elif chance < 0.85:
            yield repeated("", head + tail or unit, "")
        else:
            yield repeated(head, head or unit, tail)
