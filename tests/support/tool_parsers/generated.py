"""Generated tool calls: schemas, and arguments that follow them, as rich as models write them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

WORDS = (
    *("", " ", "\n", "\n\n", "  leading and trailing  ", "\n  indented first line\nsecond\n", "12", "-0", "1e5"),
    *("3.50", "true", "False", "null", "None", "[]", "{}", '{"a": 1}', '"quoted"', "'single'", 'it\'s "both"'),
    *(
        *(
            "back\\slash \\n \\u0041",
            "tab\tand\rreturn",
            "naïve café — “quotes” … №5",
            "日本語のテキスト",
            "emoji 👩‍👩‍👧 🎉",
        ),
    ),
    *("العربية", "<b>bold</b> & <i>x</i>", "a < b && c > d", "def f(x):\n    return {'k': [x, \"y\"]}\n"),
    *("    if indented:\n\tpass", "SELECT * FROM t WHERE name = 'O''Brien';", "```json\n{}\n```"),
    *("https://example.com/?a=1&b=2#c", "C:\\temp\\new", "{{ jinja }} {% raw %}", "$HOME `ls` $(pwd)"),
    *("<think>hm</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "[TOOL_CALLS]", "functions.f:0"),
)
STRUCTURE = ("</parameter>", "<parameter=x>", "</function>", "<function=f>", "</invoke>", '<parameter name="x">')
"""Words that some format writes as plain text around its values, without any way to tell them from a value's own."""
NAMES = ("calculator", "get_weather", "search-web", "f", "snake_case_2", "camelCase")
KEYS = ("expression", "city", "n", "flag", "options", "items_2", "x-y", "été", "a b")
TYPES = ("string", "string", "string", "integer", "number", "boolean", "null", "object", "array", "union", "any")


@dataclass(frozen=True)
class Call:
    """A call that a template is to write."""

    name: str
    arguments: dict[str, Any]
    schema: dict[str, Any]


def turn(seed: int, *, most: int = 12, structure: bool = False) -> list[Call]:
    """Return the calls of one turn: mostly one, sometimes several.

    Args:
        seed: Which turn.
        most: How many calls it may have.
        structure: Whether values may hold words that some format is made of.
    """
    rng = random.Random(seed)
    count = rng.choice((1, 1, 1, 2, 3, 12)) if most > 1 else 1
    names = rng.sample(NAMES, min(count, len(NAMES)))
    # Calls of one tool share its schema.
    schemas = {name: _schema(rng) for name in names}
    made = []
    for number in range(min(count, most)):
        name = names[number % len(names)]
        made.append(Call(name, _arguments(rng, schemas[name], structure), schemas[name]))
    return made


def _schema(rng: random.Random) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.choice((0, 1, 1, 2, 3, 6)))
    return {"type": "object", "properties": {key: _type(rng) for key in keys}}


def _type(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(TYPES)
    if kind == "union":
        return {"anyOf": [{"type": "object"}, {"type": "integer"}, {"type": "null"}]}
    return {} if kind == "any" else {"type": kind}


def _arguments(rng: random.Random, schema: dict[str, Any], structure: bool) -> dict[str, Any]:
    # Optional arguments are left out now and then.
    properties = {key: kind for key, kind in schema["properties"].items() if rng.random() > 0.1}
    return {key: _value(rng, kind, structure) for key, kind in properties.items()}


def _value(rng: random.Random, schema: dict[str, Any], structure: bool) -> Any:
    kind = schema.get("type")
    if "anyOf" in schema:
        kind = rng.choice(schema["anyOf"])["type"]
    if kind is None:
        # Any type: texts that are JSON themselves could be either, in formats without quotes.
        return rng.choice(("plain words", 5, 2.5, True, None, {"a": [1]}, [1, "x"]))
    if kind == "string":
        return _text(rng, structure)
    if kind == "integer":
        return rng.choice((0, 1, -7, 42, 10**15, -(2**63)))
    if kind == "number":
        return rng.choice((0.5, -1.25, 1e-7, 1e22, 3, 123456.789))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    return _nested(rng, kind, structure, 0)


def _nested(rng: random.Random, kind: str, structure: bool, depth: int) -> Any:
    if kind == "object":
        keys = rng.sample((*KEYS, "", 'quo"te', "new\nline"), rng.randrange(4))
        return {key: _leaf(rng, structure, depth) for key in keys}
    return [_leaf(rng, structure, depth) for _ in range(rng.randrange(4))]


def _leaf(rng: random.Random, structure: bool, depth: int) -> Any:
    if depth < 4 and rng.random() < 0.4:
        return _nested(rng, rng.choice(("object", "array")), structure, depth + 1)
    return rng.choice((_text(rng, structure), 1, -2.5, True, False, None))


def _text(rng: random.Random, structure: bool) -> str:
    words = (*WORDS, *STRUCTURE) if structure else WORDS
    return "".join(rng.choice(words) for _ in range(rng.choice((1, 1, 1, 2, 4))))
