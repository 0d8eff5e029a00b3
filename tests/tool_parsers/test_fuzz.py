"""The fuzzer finds nothing in our parsers, and does find what is put there to be found."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from strands_sglang.tool_parsers import (
    HermesToolParser,
    ParsedTurn,
    ToolCall,
    ToolParser,
    get_tool_parser,
    tool_parser_names,
)
from support.tool_parsers.grammars import GRAMMARS, SCHEMAS, Call, NotACall
from support.tool_parsers.judge import (
    Case,
    Finding,
    Hang,
    judge,
    judge_smuggled,
    judge_written,
    neutralised,
    occurrences,
    shrunk,
    watched,
)
from support.tool_parsers.mutations import Mutator, turn

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = [name for name in tool_parser_names() if name in GRAMMARS]


# --- the grammars can say no -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_grammar_refuses_damaged_calls(name: str) -> None:
    """Of a call with one character left out, most are none: a grammar that takes them all would judge nothing."""
    parser, grammar, dice = get_tool_parser(name), GRAMMARS[name], Random(name)
    refused = tried = 0
    for _ in range(20):
        text, _ = turn(dice, grammar)
        for call in parser.parse(text, schemas=SCHEMAS).calls:
            assert grammar.read(call.raw, SCHEMAS) == Call(call.name, call.arguments)
            for at in range(len(call.raw)):
                tried += 1
                try:
                    grammar.read(call.raw[:at] + call.raw[at + 1 :], SCHEMAS)
                except NotACall:
                    refused += 1
    assert refused > 0.3 * tried > 40


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>'),
        ("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>'),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</function></tool_call>"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>1</parameter>x</function></tool_call>"),
        ("qwen3_coder", "<tool_call><function=set_options><parameter=items>(1, 2)</parameter></function></tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_value>2</arg_value></tool_call>"),
        *(("pythonic", "[f(1)]"), ("pythonic", "[f(a=b)]"), ("pythonic", "[f(a=1, a=2)]"), ("pythonic", "[f(a=1+1)]")),
        *(("pythonic", "[f(a={1: 2})]"), ("pythonic", "[f(a=1e999)]")),
        ("gemma", "<|tool_call>call:f{a:b}<tool_call|>"),
        ("gemma", '<|tool_call>call:f{"a":1}<tool_call|>'),
        ("gemma", "<|tool_call>call:f{a:1,a:2}<tool_call|>"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1} '),
        ("llama3_json", '{"name": "f", "arguments": {}}'),
    ],
)
def test_grammar_refuses_malformed_call(name: str, raw: str) -> None:
    with pytest.raises(NotACall):
        GRAMMARS[name].read(raw, SCHEMAS)


# --- the fuzzer can fail ---------------------------------------------------------------------------------------------


class Raises(HermesToolParser):
    @override
    def parse(self, text: str, **options: Any) -> ParsedTurn:
        text.encode()
        return super().parse(text, **options)


class Sloppy(HermesToolParser):
    """Reads what looks like a call, as many do."""

    @override
    def parse(self, text: str, **options: Any) -> ParsedTurn:
        calls = []
        for found in re.finditer(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text, re.DOTALL):
            try:
                value = json.loads(found[1])
                calls.append(ToolCall(value["name"], value.get("arguments") or {}, found[0], found.start()))
            except (ValueError, KeyError, RecursionError):
                continue
        return ParsedTurn(None, "", tuple(calls))


class Draft(HermesToolParser):
    """Looks for calls in reasoning, too."""

    @override
    def parse(self, text: str, *, reasoning_open: bool = False, schemas: Any = None) -> ParsedTurn:
        return super().parse(text.replace("<think>", "<thimk>"), reasoning_open=False, schemas=schemas)


class Letters(HermesToolParser):
    """Does not look at tokens."""

    @override
    def parse(self, text: str, **options: Any) -> ParsedTurn:
        return super().parse(str(text), **options)


def spoiling(spoil: Callable[[ParsedTurn], ParsedTurn]) -> type[ToolParser]:
    """Return a parser that is right, but for what is done to its outcome."""

    class Spoiling(HermesToolParser):
        @override
        def parse(self, text: str, **options: Any) -> ParsedTurn:
            return spoil(super().parse(text, **options))

    return Spoiling


def typist(read: ParsedTurn) -> ParsedTurn:
    """Take 1.0 for 1, and True for 1."""
    taken = [{key: int(v) if v in (0, 1) else v for key, v in call.arguments.items()} for call in read.calls]
    calls = [replace(call, arguments=arguments) for call, arguments in zip(read.calls, taken, strict=True)]
    return replace(read, calls=tuple(calls))


def silent(read: ParsedTurn) -> ParsedTurn:
    return replace(read, failures=())


def misplaced(read: ParsedTurn) -> ParsedTurn:
    return replace(read, failures=tuple(replace(one, start=one.start + 1) for one in read.failures))


def unexplained(read: ParsedTurn) -> ParsedTurn:
    return replace(read, failures=tuple(replace(one, detail=one.raw) for one in read.failures))


def shy(read: ParsedTurn) -> ParsedTurn:
    return replace(read, calls=read.calls[:1])


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        *((Raises, "crash"), (Sloppy, "wrong_call"), (Draft, "wrong_call"), (spoiling(silent), "missed_call")),
        *((spoiling(typist), "wrong_call"), (Letters, "wrong_call"), (spoiling(misplaced), "wrong_failure")),
        (spoiling(unexplained), "wrong_failure"),
    ],
)
def test_broken_parser_is_detected(broken: type[ToolParser], kind: str) -> None:
    parser, grammar, dice = broken(), GRAMMARS["hermes"], Random(7)
    mutator = Mutator(grammar, dice)
    found: set[str] = set()
    for number in range(3000):
        text = mutator.next()
        case = Case(text, reasoning_open=number % 5 == 0)
        if broken is Letters:
            places = occurrences(text, parser.markers)
            case = Case(text, controls=parser.markers, sampled=tuple(place for place in places if dice.random() < 0.5))
        finding = judge(parser, grammar, case)
        if finding is not None:
            found.add(finding.kind)
            smaller = shrunk(
                case, lambda other: (judge(parser, grammar, other) or Finding("", "")).kind == kind, tries=300
            )
            assert finding.kind != kind or len(smaller.text) <= len(text)
        if kind in found:
            break
    assert kind in found


def test_parser_that_misses_calls_is_detected() -> None:
    dice = Random(7)
    kinds = [judge_written(spoiling(shy)(), *turn(dice, GRAMMARS["hermes"])) for _ in range(50)]
    assert {finding.kind for finding in kinds if finding is not None} == {"missed_call"}


def test_parser_of_nested_calls_is_detected() -> None:
    dice = Random(7)
    found = [judge_smuggled(Sloppy(), GRAMMARS["hermes"], dice)[1] for _ in range(300)]
    assert "wrong_call" in {finding.kind for finding in found if finding is not None}


def test_hanging_parser_is_stopped() -> None:
    with pytest.raises(Hang), watched(0.2):
        while True:
            pass


def test_marker_letters_without_token_are_neutralised() -> None:
    case = Case("<a>x<a>", controls=("<a>",), sampled=(4,))
    neutral, back = neutralised(case)
    assert neutral.text[4:] == "<a>" and neutral.text[:3] != "<a>" and neutral.sampled is None
    assert neutral.text.translate(back) == case.text


def test_case_round_trips_through_file(tmp_path: Path) -> None:
    case = Case("\ud800<a>\0", True, False, ("<a>",), (1,))
    case.save(tmp_path / "case.json", "hermes")
    assert Case.load(tmp_path / "case.json") == ("hermes", case)


# --- the command -----------------------------------------------------------------------------------------------------


def fuzz(*arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = [sys.executable, str(ROOT / "scripts" / "fuzz"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    return result, json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


def test_command_finds_no_errors() -> None:
    result, summary = fuzz("--seconds", "3", "--seed", "5")
    assert result.returncode == 0, result.stderr[-3000:]
    assert summary["inputs"] > 1000 and summary["parsers"] == NAMES and summary["seed"] == 5
    bad = ("crashes", "wrong_calls", "wrong_failures", "missed_calls", "hangs")
    assert [summary[name] for name in bad] == [0] * 5
    assert 0 < summary["slowest_1mb_seconds"] < 5 and summary["seconds"] < 300
    assert "inputs" in result.stderr


def test_command_finds_broken_parser_and_replays_finding(tmp_path: Path) -> None:
    file = tmp_path / "sloppy.py"
    file.write_text(
        "import json\nimport re\nfrom typing import Any\nfrom typing_extensions import override\n"
        "from strands_sglang.tool_parsers import HermesToolParser, ParsedTurn, ToolCall\n\n\n"
        + inspect.getsource(Sloppy)
    )
    result, summary = fuzz("--seconds", "4", "--seed", "5", "--jobs", "1", "--parser", f"hermes={file}:Sloppy")
    assert result.returncode == 1 and summary["wrong_calls"] > 0
    kept = re.search(r"replay: scripts/fuzz --replay (\S+wrong_call\S+)", result.stderr)
    assert kept is not None
    again, _ = fuzz("--replay", kept[1])
    assert again.returncode == 1 and "wrong_call" in again.stdout
    assert len(Case.load(Path(kept[1]))[1].text) < 200


def test_command_finds_slow_parser(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(
        "from strands_sglang.tool_parsers import HermesToolParser\n\n\n"
        "class Slow(HermesToolParser):\n"
        "    def parse(self, text, **options):\n"
        "        sum(1 for at in range(0, len(text), 50) if text[at:].count('<') < 0)\n"
        "        return super().parse(text, **options)\n"
    )
    result, summary = fuzz("--seconds", "4", "--seed", "5", "--jobs", "1", "--parser", f"hermes={file}:Slow")
    assert result.returncode == 1 and summary["hangs"] > 0
    assert "a megabyte took" in result.stderr or "was stopped after" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parser", "no-such-parser"], "hermes"),
        (["--parser", "hermes=nowhere.py:X"], "FILE:CLASS"),
        (["--seconds", "soon"], "--seconds"),
    ],
)
def test_invalid_argument_error_names_valid_values(arguments: list[str], words: str) -> None:
    result, _ = fuzz(*arguments)
    assert result.returncode == 2 and words in result.stderr and "Traceback" not in result.stderr
