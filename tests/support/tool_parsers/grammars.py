"""What a well-formed call is in each family, said a second time and in another way than the parsers say it.

The parsers read marker by marker, in place and in linear time. Here a call is one text, matched as a whole by a
regular expression and read by the standard library: slow, short, and easy to compare with the family's chat template.
`read` answers for one call that a parser returned whether it is one and what it says; `write` writes turns as the
family does.

Invariant: nothing here comes from `strands_sglang`, so a mistake there cannot hide itself here.
"""

from __future__ import annotations

import ast
import io
import itertools
import json
import keyword
import math
import re
import tokenize
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, NoReturn

Schemas = Mapping[str, Mapping[str, Any]]

_SOME: dict[str, Any] = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "calculator": {"type": "object", "properties": {"expression": _SOME}, "required": ["expression"]},
    "write_file": {"type": "object", "properties": {"path": _SOME, "text": _SOME, "mode": {"type": "integer"}}},
    "set_options": {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "on": {"type": "boolean"},
            "nothing": {"type": "null"},
            "items": {"type": "array", "items": {}},
            "options": {"type": "object"},
            "either": {"type": ["string", "integer"]},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "level": {"enum": ["low", "high", 3]},
        },
    },
    "ping": {"type": "object", "properties": {}},
}
"""Tools for well-formed calls: every type that a schema can name."""


class Call(NamedTuple):
    """What a call says."""

    name: str
    arguments: dict[str, Any]


class NotACall(Exception):
    """Why a text is no well-formed call of a family."""


Reader = Callable[[str, Schemas], Call]
Writer = Callable[[list[Call], Random], str]


@dataclass(frozen=True)
class Grammar:
    """One family's format."""

    read: Reader
    """The text of one call, markers included, to what it says; raises `NotACall`."""
    write: Writer
    """Calls to a turn that holds them and nothing else."""
    words: tuple[str, ...]
    """The words that the format is made of, for those who want to damage it."""
    reserved: tuple[str, ...] = ()
    """Words that no value can hold, in formats that write values bare."""
    keys: str = ".*"
    """What a key of an object inside a value must match to be writable."""
    openings: tuple[str, ...] = ()
    """Words that begin a call or a frame of calls: behind the reasoning, none may go by without a word about it."""
    framed: bool = False
    """Whether such a word belongs to the frame, and not to the text of a call."""
    data: str = ""
    """Behind which word of a call its data stands; empty: behind the first."""
    channel: str = ""
    """What opens reasoning in the middle of a turn, where a format has that."""
    parallel: bool = True
    """Whether a turn can hold several calls."""
    dialects: tuple[str, ...] = ()
    """What begins a call in each dialect. Where one is a token, those that are none are another model's words."""
    placed: Callable[[str, str, str], bool] = lambda before, raw, after: True
    """Whether a call can stand between two texts: what can be said about that for certain, with little effort."""

    def writes(self, value: Any) -> bool:
        """Return whether a value can be written so that it is read again."""
        if isinstance(value, dict):
            return all(re.fullmatch(self.keys, key, re.DOTALL) and self.writes(value[key]) for key in value)
        if isinstance(value, list):
            return all(map(self.writes, value))
        return not isinstance(value, str) or not any(word in value for word in self.reserved)


# --- JSON ------------------------------------------------------------------------------------------------------------

_DEEPEST = 100
_SPACE = " \t\n\r"
_GAP = r"[ \t\n\r]*"
_NAME = r"([^\s<>\"'{}]+)"


def refuse(reason: str) -> NoReturn:
    raise NotACall(reason)


def strict(text: str) -> Any:
    """Return the one JSON value that a text is, whitespace around it allowed.

    Raises:
        NotACall: It is none, or one that JSON readers do not agree about.
    """
    try:
        value = json.loads(
            text.strip(_SPACE),
            object_pairs_hook=_once,
            parse_constant=lambda word: refuse(f"{word} is not JSON"),
            parse_float=_finite,
            parse_int=_short,
        )
    except (ValueError, RecursionError) as error:
        raise NotACall(f"not JSON: {error}") from None
    return portable(value)


def portable(value: Any, depth: int = 0) -> Any:
    """Return a value that is not too deep, and whose strings can be encoded."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            refuse("a lone surrogate")
    elif isinstance(value, (dict, list)):
        if depth == _DEEPEST:
            refuse("too deep")
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            portable(inner, depth + 1)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        refuse("a key occurs twice")
    return dict(pairs)


def _finite(digits: str) -> float:
    return float(digits) if math.isfinite(float(digits)) else refuse("the number is too large")


def _short(digits: str) -> int:
    return int(digits) if len(digits) <= 4300 else refuse("the number is too long")


def dumped(value: Any, dice: Random) -> str:
    """Return a value as JSON, in one of the ways that models write it."""
    style = dice.random()
    if style < 0.5:
        return json.dumps(value, ensure_ascii=False)
    if style < 0.7:
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False, **({"separators": (",", ":")} if style < 0.85 else {"indent": 2}))


# --- what formats have in common -------------------------------------------------------------------------------------


def parts(pattern: str, raw: str) -> tuple[str, ...]:
    """Return the groups of a pattern that a text must match as a whole."""
    found = re.fullmatch(pattern, raw, re.DOTALL)
    return found.groups() if found else refuse(f"does not match {pattern}")


def named(name: Any) -> str:
    return name if isinstance(name, str) and name.strip() else refuse("no name")


def objected(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else refuse("the arguments are no object")


def call_object(value: Any, key: str = "arguments") -> Call:
    """Return the call that a JSON object is, whose arguments stand under a key."""
    value = objected(value)
    return Call(named(value.get("name")), objected(value.get(key)))


_TYPES = {"string", "integer", "number", "boolean", "null", "object", "array"}
_PYTHON = {"True": True, "False": False, "None": None}


def typed(text: str, name: str, key: str, schemas: Schemas) -> Any:
    """Return the value that a bare text is under a tool's schema."""
    properties = schemas.get(name, {}).get("properties", {})
    types = types_of(properties[key]) if key in properties else {"string"}
    portable(text)
    if types == {"string"}:
        return text
    if "string" in types:  # something else only if that is exactly how it is written
        value = _PYTHON.get(text, text) if text in _PYTHON and types != _TYPES else _exact(text)
        return value if kinds_of(value) & types and ("number" in types or not isinstance(value, float)) else text
    try:
        bare = text.strip(_SPACE)
        value = _PYTHON[bare] if bare in _PYTHON else strict(text)
        if kinds_of(value) & types:
            return value
    except NotACall:
        pass
    # A scalar of another type is the tool's business; what should be a list or an object, and is none, is malformed.
    return (
        refuse("no list, or no object")
        if types & {"object", "array"} and types <= {"object", "array", "null"}
        else text
    )


def _exact(text: str) -> Any:
    try:
        value = strict(text)
    except NotACall:
        return text
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    same = json.dumps(value) == text if is_number else text == text.strip(_SPACE)
    return value if same and not isinstance(value, str) else text


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a parameter's schema allows, for the schemas that are used here."""
    if "type" in schema:
        types = {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
        return types | {"integer"} if "number" in types else types
    if "anyOf" in schema:
        return set().union(*map(types_of, schema["anyOf"]))
    return set().union(*map(kinds_of, schema["enum"])) if "enum" in schema else set(_TYPES)


def kinds_of(value: Any) -> set[str]:
    """Return the types of JSON schema that a value has."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"integer", "number"} if value.is_integer() else {"number"}
    return {{dict: "object", list: "array", str: "string", type(None): "null"}[type(value)]}


def unrolled(inside: str, item: str, pairs: Callable[[re.Match[str]], tuple[str, Any]]) -> dict[str, Any]:
    """Return what stands in a text that is nothing but items, with whitespace between."""
    if not re.fullmatch(f"{_GAP}(?:{item}{_GAP})*", inside, re.DOTALL):
        refuse("something else stands between the parameters")
    return _once_only([pairs(found) for found in re.finditer(item, inside, re.DOTALL)])


def _once_only(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for key, _ in pairs:
        portable(key)
        if not re.fullmatch(r"[^<>\"\n]+", key) or key != key.strip() or key[0] == "'":
            refuse(f"{key!r} is no bare key")
    return _once(pairs)


def without(*words: str) -> str:
    """Return a pattern for text in which none of some words stands."""
    return f"((?:(?!{'|'.join(map(re.escape, words))}).)*)"


def bare(value: Any, python: bool = False) -> str:
    """Return a value as templates write it between tags."""
    if isinstance(value, str):
        return value
    return str(value) if python and not isinstance(value, (dict, list)) else json.dumps(value, ensure_ascii=False)


# --- hermes ----------------------------------------------------------------------------------------------------------


def read_hermes(raw: str, schemas: Schemas) -> Call:
    (inside,) = parts("<tool_call>(.*)</tool_call>", raw)
    return call_object(strict(inside))


def write_hermes(calls: list[Call], dice: Random) -> str:
    return "\n".join(f"<tool_call>\n{dumped(call._asdict(), dice)}\n</tool_call>" for call in calls)


# --- qwen3_coder -----------------------------------------------------------------------------------------------------

_CODER = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")


def read_qwen3_coder(raw: str, schemas: Schemas) -> Call:
    name, inside = parts(f"<tool_call>{_GAP}<function={_NAME}>(.*)</function>{_GAP}</tool_call>", raw)
    item = f"<parameter=([^>]*)>{without(*_CODER)}</parameter>"

    def pair(found: re.Match[str]) -> tuple[str, Any]:
        key, text = found.groups()
        text = text.removeprefix("\n").removesuffix("\n")
        return key, typed(text, named(name), key, schemas)

    return Call(named(name), unrolled(inside, item, pair))


def write_qwen3_coder(calls: list[Call], dice: Random) -> str:
    def one(call: Call) -> str:
        values = (f"<parameter={key}>\n{bare(value, True)}\n</parameter>\n" for key, value in call.arguments.items())
        return f"<tool_call>\n<function={call.name}>\n{''.join(values)}</function>\n</tool_call>"

    return "\n".join(map(one, calls))


# --- glm -------------------------------------------------------------------------------------------------------------

_GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def read_glm(raw: str, schemas: Schemas) -> Call:
    name, inside = parts(f"<tool_call>{_GAP}{_NAME}{_GAP}((?:<arg_key>.*)?)</tool_call>", raw)
    item = f"<arg_key>{without(*_GLM)}</arg_key>{_GAP}<arg_value>{without(*_GLM)}</arg_value>"
    return Call(named(name), unrolled(inside, item, lambda found: (found[1], typed(found[2], name, found[1], schemas))))


def write_glm(calls: list[Call], dice: Random) -> str:
    gap = "\n" if dice.random() < 0.5 else ""

    def one(call: Call) -> str:
        values = (
            f"<arg_key>{key}</arg_key>{gap}<arg_value>{bare(value)}</arg_value>{gap}"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>{call.name}{gap}{''.join(values)}</tool_call>"

    return gap.join(map(one, calls))


# --- minimax_m2 ------------------------------------------------------------------------------------------------------

_MINIMAX = (
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>", '<parameter name="'),
    "</parameter>",
)


def read_minimax_m2(raw: str, schemas: Schemas) -> Call:
    name, inside = parts(
        f'(?:<minimax:tool_call>{_GAP})?<invoke name="{_NAME}">(.*)</invoke>(?:{_GAP}</minimax:tool_call>)?', raw
    )
    item = f'<parameter name="([^"]*)">{without(*_MINIMAX)}</parameter>'
    return Call(named(name), unrolled(inside, item, lambda found: (found[1], typed(found[2], name, found[1], schemas))))


def write_minimax_m2(calls: list[Call], dice: Random) -> str:
    def one(call: Call) -> str:
        values = (f'<parameter name="{key}">{bare(value)}</parameter>\n' for key, value in call.arguments.items())
        return f'<invoke name="{call.name}">\n{"".join(values)}</invoke>\n'

    return f"<minimax:tool_call>\n{''.join(map(one, calls))}</minimax:tool_call>"


# --- deepseek --------------------------------------------------------------------------------------------------------

_DEEPSEEK = tuple(f"<｜tool▁{word}｜>" for word in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep"))


def read_deepseek_v3(raw: str, schemas: Schemas) -> Call:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{without(*_DEEPSEEK, chr(10))}"
    name, inside = parts(f"{head}\n```json\n(.*)\n```<｜tool▁call▁end｜>", raw)
    return Call(named(name), objected(strict(inside)))


def write_deepseek_v3(calls: list[Call], dice: Random) -> str:
    def one(call: Call) -> str:
        block = f"```json\n{dumped(call.arguments, dice)}\n```"
        return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n{block}<｜tool▁call▁end｜>"

    return f"<｜tool▁calls▁begin｜>{chr(10).join(map(one, calls))}<｜tool▁calls▁end｜>"


def read_deepseek_v31(raw: str, schemas: Schemas) -> Call:
    pattern = rf"<｜tool▁call▁begin｜>{without(*_DEEPSEEK)}<｜tool▁sep｜>(.*)<｜tool▁call▁end｜>"
    name, inside = parts(pattern, raw)
    return Call(named(name), objected(strict(inside)))


def write_deepseek_v31(calls: list[Call], dice: Random) -> str:
    written = (
        f"<｜tool▁call▁begin｜>{call.name}<｜tool▁sep｜>{dumped(call.arguments, dice)}<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{''.join(written)}<｜tool▁calls▁end｜>"


_DSML = (
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    *('<｜DSML｜invoke name="', "</｜DSML｜invoke>", '<｜DSML｜parameter name="', "</｜DSML｜parameter>"),
)


def read_deepseek_v32(raw: str, schemas: Schemas) -> Call:
    block = "(?:function|tool)_calls>"
    opening, name, inside, closing = parts(
        f'(<｜DSML｜{block})?{_GAP}<｜DSML｜invoke name="{_NAME}">(.*)</｜DSML｜invoke>{_GAP}(</｜DSML｜{block})?', raw
    )
    if opening and closing and opening[1:] != closing[2:]:
        refuse("opened as one block and closed as another")
    pairs = []
    tag = re.compile(f'{_GAP}<｜DSML｜parameter name="([^"]*)" string="(true|false)">', re.DOTALL)
    text = re.compile(f"{without(*_DSML)}</｜DSML｜parameter>", re.DOTALL)
    while inside.strip(_SPACE):
        opened = tag.match(inside) or refuse("something else stands between the parameters")
        inside = inside[opened.end() :]
        if opened[2] == "true":
            closed = text.match(inside) or refuse("a string that is not closed, or holds a tag")
            value, inside = portable(closed[1]), inside[closed.end() :]
        else:  # JSON ends where it ends, whatever its strings hold
            inside = inside.lstrip(_SPACE)
            try:
                end = json.JSONDecoder().raw_decode(inside)[1]
            except (ValueError, RecursionError) as error:
                raise NotACall(f"not JSON: {error}") from None
            value, inside = strict(inside[:end]), inside[end:].lstrip(_SPACE)
            inside = inside.removeprefix(_DSML[-1]) if inside.startswith(_DSML[-1]) else refuse("not closed")
        pairs.append((opened[1], value))
    return Call(named(name), _once_only(pairs))


def write_deepseek_v32(calls: list[Call], dice: Random) -> str:
    def parameter(key: str, value: Any) -> str:
        is_string = str(isinstance(value, str)).lower()
        return f'<｜DSML｜parameter name="{key}" string="{is_string}">{bare(value)}</｜DSML｜parameter>\n'

    def one(call: Call) -> str:
        values = "".join(parameter(key, value) for key, value in call.arguments.items())
        return f'<｜DSML｜invoke name="{call.name}">\n{values}</｜DSML｜invoke>\n'

    block = "function_calls" if dice.random() < 0.5 else "tool_calls"
    return f"<｜DSML｜{block}>\n{''.join(map(one, calls))}</｜DSML｜{block}>"


# --- kimi_k2 ---------------------------------------------------------------------------------------------------------

_KIMI = tuple(
    f"<|tool_{word}|>"
    for word in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")
)


def read_kimi_k2(raw: str, schemas: Schemas) -> Call:
    pattern = rf"<\|tool_call_begin\|>{without(*_KIMI)}<\|tool_call_argument_begin\|>(.*)<\|tool_call_end\|>"
    written, inside = parts(pattern, raw)
    name, _ = parts(r"functions\.(.+):([0-9]+)", written)
    return Call(named(name), objected(strict(inside)))


def write_kimi_k2(calls: list[Call], dice: Random) -> str:
    written = (
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>{dumped(call.arguments, dice)}"
        "<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


# --- llama3_json -----------------------------------------------------------------------------------------------------


def read_llama3_json(raw: str, schemas: Schemas) -> Call:
    (inside,) = parts(r"(?:<\|python_tag\|>)?(.*)", raw)
    value = strict(inside)
    return refuse("two kinds of arguments") if "arguments" in objected(value) else call_object(value, "parameters")


def write_llama3_json(calls: list[Call], dice: Random) -> str:
    written = (dumped({"name": call.name, "parameters": call.arguments}, dice) for call in calls)
    return ("<|python_tag|>" if dice.random() < 0.3 else "") + "".join(written)


# --- pythonic --------------------------------------------------------------------------------------------------------


def read_pythonic(raw: str, schemas: Schemas) -> Call:
    first = r"(?:<\|python_start\|>)?[ \t\n\r\f]*\[|[ \t\n\r\f]*,"  # the calls of a list share out its text
    last = r"[ \t\n\r\f]*,?[ \t\n\r\f]*\](?:[ \t\n\r\f]*<\|python_end\|>)?"
    name, inside = parts(rf"(?:{first})[ \t\n\r\f]*((?:[^\W\d]\w*\.)*[^\W\d]\w*)(\(.*\))(?:{last})?", raw)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_without_reserved_words(f"f{inside}"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise NotACall(f"not Python: {error}") from None
    if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Name):
        refuse("no call, or one with arguments that have no names")
    pairs = [((word.arg or refuse("**")).removeprefix(_RESERVED), literal(word.value)) for word in tree.keywords]
    return Call(name, portable(_once(pairs)))


_RESERVED = "reserved_"


def _without_reserved_words(source: str) -> str:
    """Return Python in which no argument is named by a reserved word: a tool's parameter may well be called `from`."""
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    words = [word for word in found if word.type != tokenize.NL]
    lines = io.StringIO(source).readlines()
    for word, following in reversed(list(itertools.pairwise(words))):
        if word.type == tokenize.NAME and keyword.iskeyword(word.string) and following.string == "=":
            row, column = word.start
            lines[row - 1] = f"{lines[row - 1][:column]}{_RESERVED}{lines[row - 1][column:]}"
    return "".join(lines)


def literal(node: ast.expr) -> Any:
    """Return the value of a Python literal that JSON could hold as well."""
    match node:
        case ast.Constant(value=str() | bool() | None as value):
            return value
        case ast.Constant(value=int() as value):
            return _short(str(value)) if value < 10**4300 else refuse("the number is too long")
        case ast.Constant(value=float() as value):
            return _finite(repr(value))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)):
            number = literal(node.operand) if not isinstance(value, bool) else refuse("a sign before a word")
            return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items):
            return [literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            made = [
                (literal(key) if key else refuse("**"), literal(value)) for key, value in zip(keys, values, strict=True)
            ]
            return _once(
                [(key if isinstance(key, str) else refuse("a key that is no string"), value) for key, value in made]
            )
    return refuse(f"{ast.dump(node)[:40]} is no literal")


def write_pythonic(calls: list[Call], dice: Random) -> str:
    def one(call: Call) -> str:
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"

    written = f"[{', '.join(map(one, calls))}]"
    return written if dice.random() < 0.7 else f"<|python_start|>{written}<|python_end|>"


# --- mistral ---------------------------------------------------------------------------------------------------------


def read_mistral(raw: str, schemas: Schemas) -> Call:
    if raw.startswith("{"):
        value = objected(strict(raw))
        named(value.get("id", "none"))
        return call_object(value)
    name, call_id, inside = parts(r"\[TOOL_CALLS\]([^\[\]{}]+)(?:\[CALL_ID\]([^\[\]{}]+))?\[ARGS\](.*\})", raw)
    named("none" if call_id is None else call_id)
    return Call(named(name), objected(strict(inside)))


def write_mistral(calls: list[Call], dice: Random) -> str:
    style = dice.random()
    if style < 0.4:
        made = [{**call._asdict(), "id": f"call{number:05}"} for number, call in enumerate(calls)]
        return f"[TOOL_CALLS]{dumped(made, dice)}"
    ids = [f"[CALL_ID]call{number:05}" if style < 0.7 else "" for number in range(len(calls))]
    return "".join(
        f"[TOOL_CALLS]{call.name}{call_id}[ARGS]{dumped(call.arguments, dice)}"
        for call, call_id in zip(calls, ids, strict=True)
    )


# --- phi4, nemotron --------------------------------------------------------------------------------------------------


def read_phi4(raw: str, schemas: Schemas) -> Call:
    return call_object(strict(raw))


def write_phi4(calls: list[Call], dice: Random) -> str:
    written = dumped([call._asdict() for call in calls], dice)
    return f"functools{written}" if dice.random() < 0.3 else f"<|tool_call|>{written}<|/tool_call|>"


def read_nemotron(raw: str, schemas: Schemas) -> Call:
    return call_object(strict(raw))


def write_nemotron(calls: list[Call], dice: Random) -> str:
    return f"<TOOLCALL>{dumped([call._asdict() for call in calls], dice)}</TOOLCALL>"


# --- gemma -----------------------------------------------------------------------------------------------------------

_GEMMA = {"<start_function_call>": ("<end_function_call>", "<escape>"), "<|tool_call>": ("<tool_call|>", '<|"|>')}
_GEMMA_KEY = r"[^{}\[\],:<>=\"'`\x00-\x1f]+"


def read_gemma(raw: str, schemas: Schemas) -> Call:
    """Turn what stands between string marks into JSON strings, and bare keys too; the rest is JSON already."""
    opening = next((word for word in _GEMMA if raw.startswith(word)), None) or refuse("no opening")
    closing, mark = _GEMMA[opening]
    name, inside = parts(
        rf"{re.escape(opening)}{_GAP}call:([^\s{{}}\[\],<>\"']+)(\{{.*\}}){_GAP}{re.escape(closing)}", raw
    )
    outside = inside.split(mark)[::2]
    if len(inside.split(mark)) % 2 == 0 or '"' in "".join(outside):
        refuse("a string that is not closed, or one in quotes")
    strings = [json.dumps(portable(text)) for text in inside.split(mark)[1::2]]
    turned = [re.sub(rf"([{{,]{_GAP})({_GEMMA_KEY}):", _quoted, text) for text in outside]
    turned = [re.sub(r"(?<![^:,\[ \t\n\r])None(?![^,\]} \t\n\r])", "null", text) for text in turned]
    return Call(named(name), objected(strict("".join(itertools.chain(*zip(turned, [*strings, ""], strict=True))))))


def _quoted(found: re.Match[str]) -> str:
    if found[2] != found[2].strip():
        refuse("blanks around a key")
    return f"{found[1]}{json.dumps(portable(found[2]))}:"


def write_gemma(calls: list[Call], dice: Random) -> str:
    opening = "<|tool_call>" if dice.random() < 0.7 else "<start_function_call>"
    closing, mark = _GEMMA[opening]

    def one(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{one(inner)}' for key, inner in value.items())}}}"
        if isinstance(value, list):
            return f"[{','.join(map(one, value))}]"
        return f"{mark}{value}{mark}" if isinstance(value, str) else json.dumps(value)

    return "".join(f"{opening}call:{call.name}{one(call.arguments)}{closing}" for call in calls)


# --- harmony ---------------------------------------------------------------------------------------------------------

_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|end|>", "<|return|>")


def read_harmony(raw: str, schemas: Schemas) -> Call:
    header, inside = parts(rf"{without('<|message|>')}<\|message\|>(.*)<\|call\|>", raw)
    to = r"to=functions\.([\w.-]+)"
    front, behind = parts(
        rf"(?:<\|start\|>\s*assistant(?=\s|<))?(?:\s*{to})?\s*<\|channel\|>\s*(?:commentary|analysis)(?:\s+{to})?"
        r"(?:\s+(?!to=)[^\s<]+|\s*<\|constrain\|>\s*(?!to=)[^\s<]+)?\s*",
        header,
    )
    if front and behind and front != behind:
        refuse("two recipients")
    return Call(named(front or behind), objected(strict(inside)))


def write_harmony(calls: list[Call], dice: Random) -> str:
    def one(call: Call) -> str:
        header = (
            f" to=functions.{call.name}<|channel|>commentary json"
            if dice.random() < 0.5
            else f"<|channel|>commentary to=functions.{call.name} <|constrain|>json"
        )
        return f"{header}<|message|>{dumped(call.arguments, dice)}<|call|>"

    before = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" if dice.random() < 0.5 else ""
    return before + "<|start|>assistant".join(map(one, calls))


# --- all of them -----------------------------------------------------------------------------------------------------


def within(*openings: str) -> Callable[[str, str, str], bool]:
    """Return whether one of some words stands before a call, or begins it."""
    return lambda before, raw, after: any(word in before or raw.startswith(word) for word in openings)


def listed(*openings: str) -> Callable[[str, str, str], bool]:
    """Return whether one of some words stands before a call, and a list goes on or ends behind it."""
    is_within = within(*openings)
    return lambda before, raw, after: is_within(before, raw, after) and after.lstrip(_SPACE)[:1] in {",", "]"}


def mistral_list(before: str, raw: str, after: str) -> bool:
    return raw.startswith("[TOOL_CALLS]") or listed("[TOOL_CALLS]")(before, raw, after)


def alone(before: str, raw: str, after: str) -> bool:
    """Return whether nothing but reasoning stands around a call."""
    return not after.strip() and (not before.strip() or before.rstrip().endswith("</think>"))


def pythonic_list(before: str, raw: str, after: str) -> bool:
    """Return whether a call stands in a list with markers, or a list goes on or ends with the turn."""
    if "<|python_start|>" in before + raw and "<|python_end|>" in raw + after:
        return True
    first = not before.strip() or before.rstrip().endswith("</think>") or raw.lstrip().startswith(",")
    return first and (after.lstrip().startswith(",") or not after.strip())


GRAMMARS: dict[str, Grammar] = {
    "hermes": Grammar(read_hermes, write_hermes, ("<tool_call>", "</tool_call>"), openings=("<tool_call>",)),
    "qwen3_coder": Grammar(*(read_qwen3_coder, write_qwen3_coder, (*_CODER, ">"), _CODER), openings=("<tool_call>",)),
    "glm": Grammar(read_glm, write_glm, _GLM, _GLM, openings=("<tool_call>",)),
    "deepseek_v3": Grammar(
        *(read_deepseek_v3, write_deepseek_v3, (*_DEEPSEEK, "function", "```json\n", "\n```")),
        openings=_DEEPSEEK[::2],
        framed=True,
        placed=within(_DEEPSEEK[0]),
    ),
    "deepseek_v31": Grammar(
        *(read_deepseek_v31, write_deepseek_v31, _DEEPSEEK),
        openings=_DEEPSEEK[::2],
        framed=True,
        placed=within(_DEEPSEEK[0]),
    ),
    "deepseek_v32": Grammar(
        *(read_deepseek_v32, write_deepseek_v32, (*_DSML, "｜DSML｜", 'string="true"', 'string="false"', '">'), _DSML),
        openings=(_DSML[0], _DSML[2]),
        placed=within(_DSML[0], _DSML[2]),
    ),
    "kimi_k2": Grammar(
        *(read_kimi_k2, write_kimi_k2, (*_KIMI, "functions.", ":0")),
        openings=(_KIMI[0], *_KIMI[2:4]),
        framed=True,
        placed=within(_KIMI[0]),
    ),
    "llama3_json": Grammar(
        *(read_llama3_json, write_llama3_json, ("<|python_tag|>", '{"name": "', '"parameters": ', "}}")),
        parallel=False,
        placed=alone,
    ),
    "pythonic": Grammar(
        *(read_pythonic, write_pythonic, (*"[]()=", ", ", "<|python_start|>", "<|python_end|>")),
        openings=("<|python_start|>",),
        data="(",
        placed=pythonic_list,
    ),
    "mistral": Grammar(
        *(read_mistral, write_mistral, ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[{", "}]", "}, {")),
        openings=("[TOOL_CALLS]",),
        framed=True,
        placed=mistral_list,
    ),
    "harmony": Grammar(
        *(read_harmony, write_harmony),
        (*_HARMONY, "assistant", "commentary", " to=functions.", "json", "analysis", "final"),
        data="<|message|>",
    ),
    "minimax_m2": Grammar(
        *(read_minimax_m2, write_minimax_m2, (*_MINIMAX, '">'), _MINIMAX),
        openings=_MINIMAX[:1],
        placed=within(_MINIMAX[0]),
    ),
    "gemma": Grammar(
        *(read_gemma, write_gemma),
        (*_GEMMA, "<end_function_call>", "<escape>", "<tool_call|>", '<|"|>', "call:", "<|channel>", "<channel|>"),
        ("<escape>", '<|"|>'),
        keys=rf"(?!\s){_GEMMA_KEY}(?<!\s)",
        openings=tuple(_GEMMA),
        channel="<|channel>",
        dialects=tuple(_GEMMA),
    ),
    "phi4": Grammar(
        *(read_phi4, write_phi4, ("<|tool_call|>", "<|/tool_call|>", "functools[", "[{", "}]", "}, {")),
        openings=("<|tool_call|>",),
        framed=True,
        placed=listed("<|tool_call|>", "functools["),
    ),
    "nemotron": Grammar(
        *(read_nemotron, write_nemotron, ("<TOOLCALL>", "</TOOLCALL>", "[{", "}]", "}, {")),
        openings=("<TOOLCALL>",),
        framed=True,
        placed=listed("<TOOLCALL>"),
    ),
}
"""Every family, by the name of its parser."""
