"""On SGLang's own code: its parsers and ours read the same well-formed outputs alike, or the difference is listed.

The outputs are written by the families' own chat templates where they render calls, else by the writers of
`support/tool_parsers/grammars.py`, so it is known what each of them says. Ours must read exactly that. Where
SGLang reads something else, `DIFFERENCES` must say so, and what it says must still be true of the SGLang that the lab
installs.
"""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest

from strands_sglang.chat.control_tokens import ControlTokens
from strands_sglang.chat.template import ChatTemplate
from strands_sglang.tool_parsers import get_tool_parser, tool_parser_names
from support.examples import size
from support.families import tokenizer
from support.lab_servers import LAB, engine
from support.tool_parsers.grammars import GRAMMARS, SCHEMAS, Call, Grammar
from support.tool_parsers.mutations import turn

pytestmark = pytest.mark.engine

EACH = size(100, 300)
"""Outputs of each pair."""

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@dataclass(frozen=True)
class Pair:
    """Two parsers of one format, and what writes it."""

    ours: str
    theirs: str
    family: str | None = None
    """Whose chat template writes the outputs; None: the grammar's writer."""
    most: int = 4
    as_text: bool = False
    opening: str = ""
    """What an output must begin with, where the writer knows several ways."""

    def __str__(self) -> str:
        return f"{self.theirs}-{self.family or 'written'}"


PAIRS = [
    Pair("hermes", "qwen25", "qwen3"),
    Pair("hermes", "hermes", "qwen2.5"),
    Pair("hermes", "qwen25"),
    Pair("hermes", "hermes"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3-coder"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3.5"),
    Pair("qwen3_coder", "qwen3_coder", "qwen3.6"),
    Pair("qwen3_coder", "qwen3_coder", "nemotron-3-nano"),
    Pair("glm", "glm45", "glm-4.5"),
    Pair("glm", "glm45", "glm-4.6"),
    Pair("glm", "glm47", "glm-4.7-flash"),
    Pair("deepseek_v3", "deepseekv3", "deepseek-v3", most=2, as_text=True),
    Pair("deepseek_v3", "deepseekv3", "deepseek-r1", as_text=True),
    Pair("deepseek_v3", "deepseekv3"),
    Pair("deepseek_v31", "deepseekv31", "deepseek-v3.1"),
    Pair("deepseek_v31", "deepseekv31"),
    Pair("deepseek_v32", "deepseekv32", "deepseek-v3.2"),
    Pair("deepseek_v32", "deepseekv4", "deepseek-v4"),
    Pair("kimi_k2", "kimi_k2", "kimi-k2"),
    Pair("kimi_k2", "kimi_k2", "kimi-k2-thinking"),
    Pair("kimi_k2", "kimi_k2"),
    Pair("llama3_json", "llama3", "llama-3.1", most=1),
    Pair("llama3_json", "llama3", "llama-3.2", most=1),
    Pair("llama3_json", "llama3"),
    Pair("pythonic", "pythonic"),
    Pair("mistral", "mistral", "mistral-nemo"),
    Pair("mistral", "mistral", "mistral-small-3.2"),
    Pair("mistral", "mistral", "devstral-2507"),
    Pair("mistral", "mistral", "ministral-3-reasoning"),
    Pair("mistral", "mistral"),
    Pair("harmony", "gpt-oss", "gpt-oss", most=1),
    Pair("harmony", "gpt-oss"),
    Pair("minimax_m2", "minimax-m2", "minimax-m2"),
    Pair("gemma", "gemma4", opening="<|tool_call>"),
]
"""SGLang has no parser for what Phi-4, FunctionGemma and the Nemotron models before the third write."""


class Case(NamedTuple):
    """One output, and what it says."""

    pair: Pair
    text: str
    calls: list[Call]


class Difference(NamedTuple):
    """What SGLang reads otherwise than it was written: a whole turn, or one argument of a call."""

    case: Case
    wrote: Any
    read: Any
    """What SGLang made of it; for a turn, its calls or why there are none."""
    key: str | None = None
    """The argument; None for a whole turn."""


_TURN_END = re.compile(r"(?:<\|im_end\|>|<｜end▁of▁sentence｜>|</s>|<\|eot_id\|>|\[e~\[)?\n*\Z")


@cache
def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(tokenizer(family), ControlTokens(tokenizer(family)))


def rendered(pair: Pair, calls: list[Call]) -> str:
    """Return what the family's template writes for a turn of calls: from the first call on, without the turn's end."""
    assert pair.family is not None
    template = template_of(pair.family)
    question = {"role": "user", "content": "?"}
    is_kimi = pair.theirs == "kimi_k2"
    tool_calls = [
        {
            "id": f"functions.{call.name}:{number}" if is_kimi else f"call{number:05}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False) if pair.as_text else call.arguments,
            },
        }
        for number, call in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": None if pair.as_text else "", "tool_calls": tool_calls}
    prompt, whole = template.official([question]), template.official([question, answer], generate=False)
    same = next(at for at in range(len(whole)) if whole[at : at + 1] != prompt[at : at + 1])
    turn_text = whole[same:]
    turn_text = re.sub(r"\A\s*(?:<think>\s*)?<?/think>\s*", "", turn_text)
    return _TURN_END.sub("", turn_text, count=1)


_STRINGS = (
    *(
        "null", "None", "nil", "true", "True", "false", "123", "1.0", "1e5", "NaN", "[1, 2]", '{"a": 1}', '"quoted"',
        "'q'",
    ),
    *(
        " ", "\n", " both ", "\n\ntwo\n\n", "  indented\n", "\\n", "\\u0041", "a\\", "don't", 'say "hi"', "a=b, c)",
        "]", "}",
    ),
)  # fmt: skip
_NUMBERS = (0, -1, 2**53 + 1, 10**30, 0.5, -0.5, 3.0, -0.0, 1e-7, 1e22, 1.5e300)


def odd_calls(grammar: Grammar) -> list[list[Call]]:
    """Return calls with each value that some parser is known to stumble over, one a turn."""
    words = {word for each in GRAMMARS.values() for word in each.words if len(word) > 4}
    strings = [*_STRINGS, *(f"a {word} b" for word in sorted(words)), *(f"}}{word}" for word in sorted(grammar.words))]
    odd: list[tuple[str, str, Any]] = [("write_file", "text", text) for text in strings]
    odd += [("ping", "undeclared", text) for text in _STRINGS]
    odd += [("set_options", "ratio", number) for number in _NUMBERS]
    odd += [("set_options", "count", number) for number in _NUMBERS if isinstance(number, int)]
    odd += [
        ("set_options", key, value)
        for key in ("items", "options")
        for value in ([None, 1e-7], {"a": None})
        if _is(key, value)
    ]
    odd += [("set_options", "either", 7), ("set_options", "either", "words"), ("set_options", "level", 3)]
    odd += [("set_options", "maybe", None), ("set_options", "maybe", "words"), ("set_options", "nothing", None)]
    odd += [("set_options", "on", True), ("set_options", "on", False)]
    return [[Call(name, {key: value})] for name, key, value in odd if grammar.writes(value)]


def _is(key: str, value: Any) -> bool:
    return isinstance(value, list if key == "items" else dict)


@cache
def cases_of(pair: Pair) -> list[Case]:
    dice, grammar = Random(str(pair)), GRAMMARS[pair.ours]
    turns = odd_calls(grammar) + [turn(dice, grammar)[1] for _ in range(EACH)]
    written = [calls[: pair.most] for calls in turns]
    return [Case(pair, _written(pair, calls, dice), calls) for calls in written]


def _written(pair: Pair, calls: list[Call], dice: Random) -> str:
    if pair.family is not None:
        return rendered(pair, calls)
    text = GRAMMARS[pair.ours].write(calls, dice)
    return text if text.startswith(pair.opening) else _written(pair, calls, dice)


@dataclass(frozen=True)
class Listed:
    """A difference that is known. In each of them ours reads what was written."""

    theirs: tuple[str, ...]
    what: str
    explains: Callable[[Difference], bool]

    def covers(self, difference: Difference) -> bool:
        return difference.case.pair.theirs in self.theirs and self.explains(difference)


def holds(value: Any, *words: str) -> bool:
    """Return whether one of some words stands in a string anywhere in a value."""
    if isinstance(value, str):
        return any(word in value for word in words)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return any(holds(one, *words) for one in inner)


def is_turn(difference: Difference) -> bool:
    return difference.key is None


def is_text(difference: Difference, *keys: str) -> bool:
    """Return whether a string was written, for one of some parameters."""
    return isinstance(difference.wrote, str) and (not keys or difference.key in keys)


def guessed(text: str) -> Any:
    """Return what a text is to GLM's parser in SGLang, whatever the parameter's type: JSON, or Python, or itself."""
    for attempt in (json.loads, lambda text: json.loads(json.loads(f'"{text}"')), ast.literal_eval):
        try:
            return attempt(text)
        except (ValueError, SyntaxError, TypeError):
            continue
    return text


def as_string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if holder(value) else str(value)


def holder(value: Any) -> bool:
    return isinstance(value, (dict, list))


def gemma(value: Any) -> Any:
    """Return what a value is to Gemma's parser in SGLang."""
    if isinstance(value, dict):
        return {key: gemma(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [gemma(inner) for inner in value]
    return json.dumps(value) if value is None or (isinstance(value, float) and "." not in repr(value)) else value


def negative(value: Any) -> bool:
    """Return whether a negative number stands anywhere in a value; minus zero is one."""
    if isinstance(value, (dict, list)):
        return any(map(negative, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (int, float)) and math.copysign(1, value) < 0


_TYPED = ("either", "level", "maybe", "nothing", "ratio", "count", "mode", "on", "items", "options")
_STARTED = "<|start|>assistant<|channel|>commentary"

DIFFERENCES = [
    Listed(
        ("hermes", "deepseekv3", "deepseekv31"),
        "No call of the turn, where a string holds the format's closing marker (DeepSeek-V3.1: or its separator).",
        lambda it: (
            is_turn(it)
            and it.read == []
            and holds([call.arguments for call in it.wrote], "</tool_call>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
        ),
    ),
    Listed(
        ("kimi_k2",),
        "Arguments that are not JSON, where a string holds `}<|tool_call_end|>`: they end there.",
        lambda it: is_turn(it) and holds([call.arguments for call in it.wrote], "}<|tool_call_end|>"),
    ),
    Listed(
        ("llama3",),
        "No call, where a string holds `<|python_tag|>`.",
        lambda it: is_turn(it) and it.read == [] and holds(it.wrote[0].arguments, "<|python_tag|>"),
    ),
    Listed(
        ("gemma4",),
        "A truncated call where a string holds `<tool_call|>`: it ends there, and later arguments are lost.",
        lambda it: (
            holds([call.arguments for call in it.wrote], "<tool_call|>")
            if is_turn(it)
            else is_text(it) and "<tool_call|>" in it.wrote and it.read == it.wrote.partition("<tool_call|>")[0]
        ),
    ),
    Listed(
        ("gemma4",),
        "A list inside a list torn apart, where a string in it holds a bracket.",
        lambda it: it.key in ("items", "options") and holds(it.wrote, "[", "]"),
    ),
    Listed(
        ("pythonic",),
        "Strings without `<|python_start|>` and `<|python_end|>`: both are deleted wherever they stand.",
        lambda it: is_text(it) and it.read == re.sub(r"<\|python_(?:start|end)\|>", "", it.wrote),
    ),
    Listed(
        ("pythonic",),
        "Nothing in half a second, for calls with several arguments and lists in them: each comma doubles the work.",
        lambda it: is_turn(it) and "TooLong" in it.read,
    ),
    Listed(
        ("pythonic",),
        "No call that has a negative number; the others of the turn are run.",
        lambda it: is_turn(it) and it.read == [call for call in it.wrote if not negative(call.arguments)],
    ),
    Listed(
        ("mistral",),
        "No call in `[TOOL_CALLS][{...}]`, which Mistral-Nemo's template writes: a blank is expected between the two.",
        lambda it: is_turn(it) and it.read == [] and it.case.text.startswith("[TOOL_CALLS]["),
    ),
    Listed(
        ("mistral",),
        "No call in `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`, as Mistral-Small-3.2's template writes it.",
        lambda it: is_turn(it) and it.read == [] and "[CALL_ID]" in it.case.text,
    ),
    Listed(
        ("gpt-oss",),
        "No call whose recipient stands in front of the channel, where the template writes it.",
        lambda it: is_turn(it) and re.search(r" to=functions\.\w+<\|channel\|>", it.case.text) is not None,
    ),
    Listed(
        ("gpt-oss",),
        "No call in a turn that begins with one: `<|start|>assistant` is expected, and the prompt has that.",
        lambda it: is_turn(it) and it.read == [] and _STARTED not in it.case.text,
    ),
    Listed(
        ("gpt-oss",),
        "No call, or not all of the turn, where a string holds `<|`, be it part of a marker or not.",
        lambda it: is_turn(it) and len(it.read) < len(it.wrote) and holds([call.arguments for call in it.wrote], "<|"),
    ),
    Listed(
        ("deepseekv32", "deepseekv4"),
        "Strings without the white space at their ends: indentation and last newlines are lost.",
        lambda it: is_text(it) and it.read == it.wrote.strip(),
    ),
    Listed(
        ("minimax-m2",),
        "Strings without the newlines at their ends.",
        lambda it: is_text(it) and it.read == it.wrote.strip("\n"),
    ),
    Listed(
        ("minimax-m2",),
        "null for every value of a parameter that may be null, whatever was written.",
        lambda it: is_text(it, "maybe") and it.read is None,
    ),
    Listed(
        ("qwen3_coder", "minimax-m2"),
        "null for the string `null`, in any case of letters (MiniMax: also `none` and `nil`).",
        lambda it: is_text(it) and it.wrote.lower() in ("null", "none", "nil") and it.read is None,
    ),
    Listed(
        ("qwen3_coder", "minimax-m2"),
        "Whole numbers above 2^53 rounded, where the schema says `number` (MiniMax: also 3.0 as 3, 1e22 in full).",
        lambda it: it.key == "ratio" and it.read == int(float(it.wrote)) and isinstance(it.read, int),
    ),
    Listed(
        ("qwen3_coder", "glm45"),
        "A string for a number, where the schema allows both (`type: [string, integer]`, or an enum of both).",
        lambda it: isinstance(it.wrote, int) and it.key in ("either", "level") and it.read == str(it.wrote),
    ),
    Listed(
        ("qwen3_coder", "glm45"),
        "The string `None` for null, where the schema allows string and null.",
        lambda it: it.key == "maybe" and it.wrote is None and it.read == "None",
    ),
    Listed(
        ("glm45",),
        "Strings that look like JSON, rewritten: `true` as `True`, `null` as `None`, `1e5` as `100000.0`.",
        lambda it: is_text(it) and it.key not in ("undeclared", *_TYPED) and it.read == as_string(guessed(it.wrote)),
    ),
    Listed(
        ("glm45", "glm47"),
        "Strings without the quotes around them.",
        lambda it: is_text(it) and it.read == it.wrote[1:-1] and it.wrote[:1] in ("'", '"'),
    ),
    Listed(
        ("glm45", "glm47"),
        "A number, a list, null and so on for the text of a parameter that the schema does not have.",
        lambda it: is_text(it, "undeclared") and repr(it.read) == repr(guessed(it.wrote)),
    ),
    Listed(
        ("gemma4",),
        "The string `null` for null, and strings for numbers like `1e-07` and `1e+22`, at any depth.",
        lambda it: not is_turn(it) and repr(it.read) == repr(gemma(it.wrote)),
    ),
]


def differences(case: Case, answer: dict[str, Any]) -> list[Difference]:
    if "error" in answer:
        return [Difference(case, case.calls, answer["error"])]
    read = [Call(call["name"], loaded(call["arguments"])) for call in answer["calls"]]
    if [(call.name, list(call.arguments)) for call in read] != [
        (call.name, list(call.arguments)) for call in case.calls
    ]:
        return [Difference(case, case.calls, read)]
    pairs = zip(read, case.calls, strict=True)
    found = [(key, wrote.arguments[key], theirs.arguments[key]) for theirs, wrote in pairs for key in wrote.arguments]
    return [Difference(case, wrote, theirs, key) for key, wrote, theirs in found if repr(wrote) != repr(theirs)]


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [f"not JSON: {text}"]


@pytest.fixture(scope="module")
def answers() -> dict[str, list[tuple[Case, Any]]]:
    """What SGLang reads in every output, by the name of the pair."""
    engine.ensure([])
    folder = engine.environment()
    assert folder is not None, "the engine is not set up: run lab/setup"
    cases = [case for pair in PAIRS for case in cases_of(pair)]
    lines = [json.dumps({"parser": case.pair.theirs, "text": case.text, "tools": TOOLS}) for case in cases]
    command = [str(folder / "bin" / "python"), str(LAB / "sglang_parse.py")]
    result = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, env=engine.variables(), timeout=550
    )
    assert result.returncode == 0, result.stderr[-3000:]
    read = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(read) == len(cases), result.stderr[-3000:]
    answered: dict[str, list[tuple[Case, Any]]] = {str(pair): [] for pair in PAIRS}
    for case, answer in zip(cases, read, strict=True):
        answered[str(case.pair)].append((case, answer))
    return answered


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_ours_reads_what_was_written(pair: Pair) -> None:
    parser = get_tool_parser(pair.ours)
    for case in cases_of(pair):
        read = parser.parse(case.text, schemas=SCHEMAS)
        assert read.failures == ()
        assert repr([Call(call.name, call.arguments) for call in read.calls]) == repr(case.calls)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_sglang_reads_the_same_or_the_difference_is_listed(pair: Pair, answers: Any) -> None:
    answered = answers[str(pair)]
    assert len(answered) >= EACH
    unknown = [
        difference
        for case, answer in answered
        for difference in differences(case, answer)
        if not any(listed.covers(difference) for listed in DIFFERENCES)
    ]
    assert unknown == []


def test_every_listed_difference_still_occurs(answers: Any) -> None:
    found = [one for answered in answers.values() for case, answer in answered for one in differences(case, answer)]
    seen = {(listed.what, one.case.pair.theirs) for one in found for listed in DIFFERENCES if listed.covers(one)}
    assert {(listed.what, theirs) for listed in DIFFERENCES for theirs in listed.theirs} - seen == set()


def test_sglang_still_has_no_parser_for_the_others() -> None:
    """Once it has, the table can grow."""
    compared = {pair.ours for pair in PAIRS}
    assert {name for name in tool_parser_names() if get_tool_parser(name).markers} - compared == {"phi4", "nemotron"}


def test_every_difference_is_in_the_documentation() -> None:
    page = (LAB.parent / "docs" / "reference" / "sglang-parsers.md").read_text().replace("\\|", "|")
    assert not [listed.what for listed in DIFFERENCES if listed.what not in page]
