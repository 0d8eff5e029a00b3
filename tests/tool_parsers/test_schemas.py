"""Bare values: the schema says what a text is, and no schema breaks the reader."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strands_sglang.tool_parsers.parsed import CallFault, ParseFailure, quoted
from strands_sglang.tool_parsers.schemas import Values, type_of
from support.examples import examples
from support.tool_parsers.checks import json_values

STRING, INTEGER, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY = (
    {"type": name} for name in ("string", "integer", "number", "boolean", "null", "object", "array")
)


def read(text: str, schema: Any, **root: Any) -> Any:
    """Read a text that stands in the middle of others."""
    values = Values({"f": {"type": "object", "properties": {"p": schema}, **root}})
    return values.read("f", "p", f"7{text}7", 1, 1 + len(text))


def union(*schemas: Any) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, types included: 1 is not 1.0, nor True."""
    return repr(one) == repr(other)


# --- types -----------------------------------------------------------------------------------------------------------

TEXTS = [
    *("", " ", "\n", "123", "-1.5", "1e5", "true", "True", "null", "None", "{}", "[]", '"a"', "{", "NaN", "é😀", " 1 "),
    *("  indented\n    more\n", "\n\n", "\t", "\r\n", '{"a": 1}', "\x00", "\u2028"),
]


@pytest.mark.parametrize(
    "schema",
    [
        *(STRING, {"type": ["string"]}, {"enum": ["1", "true"]}, {"const": "null"}),
        *({"type": "string", "enum": [1, "1"]}, union(STRING, {"const": "x"}), {"allOf": [STRING, {"minLength": 1}]}),
        {"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]},
        {"$ref": "#/$defs/Name"},
        # Nothing is known, or nothing can be right: the text.
        *({"type": "str"}, {"type": 7}, {"type": None}, {"type": [[]]}, {"type": {}}),
        *({"$ref": "#/$defs/Gone"}, {"$ref": "other.json"}, {"$ref": "#/$defs/Name/type/x"}),
        *(False, None, 7, "string", [], {"type": []}, {"allOf": [STRING, INTEGER]}, {"type": "string", "const": 1}),
    ],
    ids=str,
)
def test_string_value_is_verbatim_text(schema: Any) -> None:
    assert [read(text, schema, **{"$defs": {"Name": STRING}}) for text in TEXTS] == TEXTS


@pytest.mark.parametrize(
    "schemas",
    [
        *({}, {"g": {}}, {"f": {}}, {"f": None}, {"f": True}, {"f": []}, {"f": {"properties": None}}),
        *({"f": {"properties": []}}, {"f": {"properties": {"q": INTEGER}}}, {"f": {"additionalProperties": True}}),
    ],
    ids=str,
)
def test_value_without_schema_is_text(schemas: dict[str, Any]) -> None:
    assert [Values(schemas).read("f", "p", text, 0, len(text)) for text in TEXTS] == TEXTS


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *((INTEGER, "123", 123), (INTEGER, " \n-7\t\r", -7), (INTEGER, "1.0", 1.0), (INTEGER, "1e3", 1000.0)),
        *((INTEGER, "9" * 30, int("9" * 30)), (NUMBER, "1", 1), (NUMBER, "1.10", 1.1), (NUMBER, "1e-07", 1e-07)),
        *((NUMBER, "1e+22", 1e22), (BOOLEAN, "true", True), (BOOLEAN, "False\n", False), (BOOLEAN, " True", True)),
        *((NULL, "null", None), (NULL, "None", None)),
        (OBJECT, '\n{"a": [1, null, "\\u00e9"]}\n', {"a": [1, None, "é"]}),
        (OBJECT, "{}", {}),
        (ARRAY, "[]", []),
        (ARRAY, '[{"a": "</parameter>"}]', [{"a": "</parameter>"}]),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["integer", "null"]}, "4", 4),
        (union(INTEGER, OBJECT), '{"a": 1}', {"a": 1}),
        *((union(ARRAY, NULL), "null", None), ({"oneOf": [BOOLEAN, NUMBER]}, "0.5", 0.5), ({"enum": [1, 2]}, "2", 2)),
        *(({"enum": [1.5, None]}, "null", None), ({"const": True}, "True", True)),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "integer", "nullable": "yes"}, "null", "null"),
        ({"allOf": [NUMBER, {"type": ["integer", "string"]}]}, "3", 3),
        *(({"type": "number", "enum": [1, 2]}, "1", 1), ({"$ref": "#/$defs/Count"}, "3", 3)),
        *(({"$ref": "#/definitions/a~1b%20c"}, "3", 3), ({"$ref": "#/$defs/Loop"}, "3", 3)),
        ({"$ref": "#/properties/q"}, "3", 3),
        (union({"$ref": "#/$defs/Count"}, NULL), "3", 3),
        ({"type": ("integer",)}, "3", 3),
    ],
    ids=str,
)
def test_other_types_are_read(schema: Any, text: str, value: Any) -> None:
    root = {
        "$defs": {"Count": INTEGER, "Loop": union({"$ref": "#/$defs/Loop"}, INTEGER)},
        "definitions": {"a/b c": INTEGER},
    }
    root["properties"] = {"p": schema, "q": INTEGER}
    assert same(Values({"f": root}).read("f", "p", text, 0, len(text)), value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        *(
            (INTEGER, text)
            for text in ("1.5", "abc", "", " ", "01", "+1", "1 2", '"1"', "true", "[1]", "1_000", "0x10")
        ),
        *((NUMBER, text) for text in (".5", "1.", "inf", "nan", "NaN", "Infinity", "1e999", "None", "1,5")),
        *((BOOLEAN, text) for text in ("TRUE", "yes", "1", "None", "null", "")),
        *((NULL, text) for text in ("", "nil", "0", "False")),
        *((union(INTEGER, OBJECT), '{"a": 1,}'), (union(INTEGER, OBJECT), "[]"), ({"enum": [1, 2]}, "one")),
        (INTEGER, "1" * 5000),
    ],
    ids=str,
)
def test_invalid_scalar_is_passed_as_text(schema: Any, text: str) -> None:
    assert read(text, schema) == text


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "integer"]}, "-7", -7),
        ({"type": ["string", "integer"]}, "seven", "seven"),
        ({"type": ["string", "integer"]}, "", ""),
        ({"type": ["string", "integer"]}, "true", "true"),
        # What a number would not write again is a string: nothing is lost.
        *(({"type": ["string", "integer"]}, text, text) for text in (" 7", "7\n", "007", "1.0", "1e5", "-0", "7x")),
        *(({"type": ["string", "number"]}, text, text) for text in ("1.10", "1e5", "1E-7", "2.50", "1e999", ".5")),
        ({"type": ["string", "number"]}, "2.5", 2.5),
        ({"type": ["string", "number"]}, "1e-07", 1e-07),
        *(({"type": ["string", "number"]}, "2.0", 2.0), (union(STRING, NULL), "null", None)),
        *((union(STRING, NULL), "None", None), (union(STRING, NULL), " null", " null")),
        (union(STRING, NULL), "null\n", "null\n"),
        (union(STRING, OBJECT), '{"a":1}\n', '{"a":1}\n'),
        *((union(STRING, NULL), "True", "True"), (union(STRING, BOOLEAN), "True", True)),
        *((union(STRING, BOOLEAN), "false", False), (union(STRING, OBJECT), '{"a":1}', {"a": 1})),
        (union(STRING, OBJECT), '{"a": 1,}', '{"a": 1,}'),
        (union(STRING, OBJECT), '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        *((union(STRING, OBJECT), '"a"', '"a"'), (union(STRING, OBJECT), "[1]", "[1]")),
        *((union(STRING, ARRAY), "[1]", [1]), ({"enum": ["low", 3]}, "3", 3), ({"enum": ["low", 3]}, "low", "low")),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": ["str", "null"]}, "null", None),
        ({"type": ["str", "null"]}, "1", "1"),
        (union({"$ref": "elsewhere"}, INTEGER), "1", 1),
    ],
    ids=str,
)
def test_a_string_or_something_else(schema: Any, text: str, value: Any) -> None:
    assert same(read(text, schema), value)


@pytest.mark.parametrize(
    "schema",
    [{}, True, {"description": "anything"}, {"anyOf": []}, {"anyOf": "x"}, {"enum": 3}, union({}, INTEGER)],
    ids=str,
)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("7", 7), ("2.5", 2.5), ("true", True), ("null", None), ("[1]", [1]), ('{"a": 1}', {"a": 1})),
        *(("True", True), ("False", False), ("None", None)),
        *((text, text) for text in ("TRUE", '"a"', "abc", " 7", "1e5", "[1,]", "[NaN]", "")),
        ("[" * 101 + "]" * 101, "[" * 101 + "]" * 101),
    ],
)
def test_a_schema_that_allows_anything(schema: Any, text: str, value: Any) -> None:
    assert same(read(text, schema), value)


# --- what is malformed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text", "failure", "words", "at"),
    [
        (OBJECT, "hello", ParseFailure.INVALID_JSON, "'p' must be a JSON object. The JSON is not valid", 1),
        (OBJECT, "", ParseFailure.INVALID_JSON, "must be a JSON object", 1),
        (OBJECT, "{'a': 1}", ParseFailure.INVALID_JSON, "must be a JSON object", 2),
        (OBJECT, '{"a": 1} x', ParseFailure.INVALID_JSON, "there is text after the value", 10),
        (OBJECT, '{"a": NaN}', ParseFailure.INVALID_JSON, "NaN is not a JSON value", None),
        (OBJECT, '{"a": 1, "a": 1}', ParseFailure.DUPLICATE_KEY, "The key 'a' occurs twice", None),
        (OBJECT, "[1]", ParseFailure.BAD_ARGUMENTS, "must be a JSON object, not a list", None),
        (OBJECT, "7", ParseFailure.BAD_ARGUMENTS, "not a number", None),
        (OBJECT, "null", ParseFailure.BAD_ARGUMENTS, "not null", None),
        (OBJECT, "None", ParseFailure.INVALID_JSON, "must be a JSON object", 1),
        (ARRAY, '"a"', ParseFailure.BAD_ARGUMENTS, "must be a JSON list, not a string", None),
        (ARRAY, "{}", ParseFailure.BAD_ARGUMENTS, "must be a JSON list, not an object", None),
        (ARRAY, "[" * 101 + "]" * 101, ParseFailure.INVALID_JSON, "more than 100 levels", None),
        (union(ARRAY, OBJECT), "(1, 2)", ParseFailure.INVALID_JSON, "must be a JSON object or JSON list", 1),
        (union(OBJECT, NULL), "{", ParseFailure.INVALID_JSON, "must be a JSON object", 2),
        (union(OBJECT, NULL), "true", ParseFailure.BAD_ARGUMENTS, "not true", None),
        ({"enum": [[1], [2]]}, "1", ParseFailure.BAD_ARGUMENTS, "must be a JSON list", None),
        (STRING, "a\ud800b", ParseFailure.INVALID_JSON, "'p' contains a lone surrogate", 2),
        (INTEGER, "\udfff", ParseFailure.INVALID_JSON, "a lone surrogate", 1),
    ],
    ids=str,
)
def test_invalid_object_or_list_fails(
    schema: Any, text: str, failure: ParseFailure, words: str, at: int | None
) -> None:
    with pytest.raises(CallFault) as caught:
        read(text, schema)
    assert caught.value.failure is failure and words in caught.value.message
    assert (caught.value.at, caught.value.past) == (at, 1 + len(text))


def test_quoted_names_are_short_and_encodable() -> None:
    assert quoted("path") == "'path'"
    for name in ("a" * 1000, "\ud800" * 100, "\n" * 100, "\U000e0001" * 50):
        assert len(quoted(name)) <= 49 and quoted(name).encode()


# --- where the schema of a parameter stands --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"additionalProperties": INTEGER}, 5),
        ({"additionalProperties": {"$ref": "#/$defs/N"}, "$defs": {"N": INTEGER}}, 5),
        *(({"additionalProperties": STRING}, "5"), ({"additionalProperties": {}}, 5)),
        ({"additionalProperties": True}, "5"),
        ({"properties": {"p": STRING}, "additionalProperties": INTEGER}, "5"),
        ({"$ref": "#/$defs/Arguments", "$defs": {"Arguments": {"properties": {"p": INTEGER}}}}, 5),
        ({"allOf": [{"properties": {"q": STRING}}, {"properties": {"p": INTEGER}}]}, 5),
        ({"anyOf": [{"properties": {"p": INTEGER}}, {"properties": {"p": STRING}}]}, 5),
        ({"anyOf": [{"properties": {"p": NULL}}, {"properties": {"p": STRING}}]}, "5"),
        ({"$ref": "#"}, "5"),
        ({"$ref": "#", "properties": {"p": INTEGER}}, 5),
    ],
    ids=str,
)
def test_where_the_schema_of_a_parameter_is_found(schema: Any, value: Any) -> None:
    assert same(Values({"f": schema}).read("f", "p", "5", 0, 1), value)


def test_each_tool_has_its_own_schema() -> None:
    values = Values({"f": {"properties": {"p": INTEGER}}, "g": {"properties": {"p": STRING}}})
    assert [values.read(tool, "p", "5", 0, 1) for tool in ("f", "g", "f", "h")] == [5, "5", 5, "5"]


def chain(doublings: int) -> dict[str, Any]:
    """Return definitions of which each refers to the next twice: followed blindly, they never end."""
    made: dict[str, Any] = {
        f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}, {"allOf": [{"$ref": f"#/$defs/D{n + 1}"}]}]}
        for n in range(doublings)
    }
    return {**made, f"D{doublings}": INTEGER}


def deep(levels: int) -> Any:
    schema: Any = INTEGER
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("schema", "definitions"),
    [
        ({"$ref": "#/$defs/D0"}, chain(40)),
        ({"$ref": "#/$defs/A"}, {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}),
        ({"$ref": "#/$defs/A"}, {"A": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#"}]}}),
        (deep(5000), {}),
        ({"anyOf": [INTEGER] * 100_000}, {}),
    ],
    ids=["doubling", "cycle", "cycle through the root", "deep", "wide"],
)
def test_recursive_schema_terminates(schema: Any, definitions: Any) -> None:
    begun = time.process_time()
    values = Values({"f": {"properties": {"p": schema}, "$defs": definitions}})
    for _ in range(1000):
        assert values.read("f", "p", "5", 0, 1) in (5, "5")
    assert time.process_time() - begun < 5.0


# --- any schema, any text --------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
words = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable", "properties", "additionalProperties")
names = ("string", "integer", "number", "boolean", "null", "object", "array", "any", "#", "#/$defs/A", "#/properties/p")
any_schema: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(names) | scalars | st.just({}),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*words, "p", "$defs", "A")), inner, max_size=3)
    ),
    max_leaves=15,
)
texts = st.text() | st.sampled_from(TEXTS) | json_values.map(json.dumps)


@settings(deadline=None, max_examples=examples(300))
@given(any_schema, any_schema, texts)
def test_any_schema_and_text_give_value_or_fault(schema: Any, root: Any, text: str) -> None:
    whole = {"$defs": {"A": schema}, "properties": {"p": schema}, **(root if isinstance(root, dict) else {})}
    for tool in (whole, root, schema):
        try:
            value = Values({"f": tool}).read("f", "p", text, 0, len(text))
        except CallFault as fault:
            assert fault.message.encode() and 0 <= fault.past <= len(text)
        else:
            assert same(value, text) or type_of(value) not in ("string", None)
            assert json.dumps(value, allow_nan=False, ensure_ascii=False).encode() is not None


@settings(deadline=None)
@given(json_values)
def test_written_values_are_parsed(value: Any) -> None:
    schema = {"type": type_of(value)}
    as_json = value if isinstance(value, str) else json.dumps(value)
    as_python = as_json if isinstance(value, (dict, list)) else str(value)
    for text in (as_json, as_python):
        assert same(read(text, schema), value)
        assert same(read(text, {"type": [type_of(value), "null"]} if text not in ("null", "None") else schema), value)


@settings(deadline=None)
@given(texts.filter(lambda text: text not in ("True", "False", "None")))
def test_scalars_are_lossless_where_strings_are_allowed(text: str) -> None:
    for schema in ({"type": ["string", "integer", "number", "boolean", "null"]}, {}, union(STRING, INTEGER)):
        value = read(text, schema)
        assert isinstance(value, (dict, list)) or (value if isinstance(value, str) else json.dumps(value)) == text
