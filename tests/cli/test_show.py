"""`strands-sglang show`: lists, filters, one episode turn by turn, colours, and hostile text."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool

from strands_sglang._terminal import natural_key
from strands_sglang.cli import _command
from strands_sglang.cli._command import Paint
from strands_sglang.cli._episode_text import WHY, probability_style, shown_episode
from strands_sglang.cli.main import main
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import read_run, write_json
from strands_sglang.runs import EndReason, Limits
from strands_sglang.viewer.token_text import TokenTexts
from support.cli import exit_code
from support.families import FAMILIES, tokenizer, tokenizer_path
from support.ledger.episodes import (
    Recorder,
    adapted_episode,
    plain_episode,
    resumed_episode,
    rich_episode,
    spoken_episode,
    written_run,
)
from support.rollout.scripts import FAMILY, PromptEngine, run, steps
from support.viewer.generated_run import write_generated_run

TOKENIZER = tokenizer_path(FAMILY)
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202eevil\x9b1m\x00\r\x7f"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with written_run(tmp_path, sealed=False, settings={"limits": {"max_turns": 3}}) as writer:
        rich_episode(writer.write)
        for number in (2, 10):
            plain_episode(writer.write, task=f"add-{number}", sample=number % 4)
        resumed_episode(writer.write)
        plain_episode(writer.write, task="open", end=False)
        limited = Recorder(writer.write, task="limited", prompt="Find the Needle.")
        limited.call(None, context=[1], sampled=[2])
        limited.end("turn_limit", text="")
    return tmp_path


def lines(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> list[str]:
    assert main(["show", *arguments]) == code
    return capsys.readouterr().out.splitlines()


def ids(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, code: int = 0) -> list[str]:
    return [json.loads(line)["id"] for line in lines(capsys, code, str(folder), "--json", *arguments)]


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, columns, *rows = lines(capsys, 0, str(folder))
    assert head.startswith(f"{folder}  6 episodes: 3 answered, ")
    assert "1 unfinished" in head and "1 turn_limit" in head and "mean reward" in head
    assert columns.split() == [
        *("episode", "ended", "reward", "turns", "tokens", "sampled", "tools", "errors", "seconds", "text")
    ]
    assert [row.split()[0] for row in rows] == ["add-2/2", "add-10/2", "limited/0", "open/0", "resumed/0", "rich/0"]
    assert rows[-1].split()[:9] == ["rich/0", "stopped", "0.25", "12", "81", "23", "0", "0", "0.0"]


def test_filters_and_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ids(capsys, folder, "--ended", "stopped", "--ended", "unfinished") == ["open/0", "rich/0"]
    assert ids(capsys, folder, "--max-reward", "0.5") == ["rich/0"]
    assert ids(capsys, folder, "--min-reward", "0.5", "--sort", "turns", "--reverse")[0] == "resumed/0"
    assert ids(capsys, folder, "--text", "needle") == ["limited/0"]
    assert ids(capsys, folder, "--text", "TIMED OUT", "--text", "naïve") == ["rich/0"]
    assert ids(capsys, folder, "--task", "add-10") == ["add-10/2"]
    assert ids(capsys, folder, "--sort", "reward")[-1] == ids(capsys, folder, "--sort", "reward", "--reverse")[-1]
    assert ids(capsys, folder, "--limit", "2") == ["add-2/2", "add-10/2"]
    assert ids(capsys, folder, "--text", "nowhere", code=3) == []
    assert lines(capsys, 3, str(folder), "--text", "nowhere")[-1] == "no episode matches"
    assert lines(capsys, 0, str(folder), "--limit", "1")[-1] == "and 5 more: --limit 0 shows all"


def test_lists_and_evaluations_come_from_the_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generated_run(tmp_path, 20, tokens=40)
    assert len(lines(capsys, 0, str(tmp_path))) == 23
    assert main(["eval", "--recorded", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("20 episodes of 3 tasks: ")


def test_one_episode_without_a_tokenizer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), "rich"]) == 0
    printed = capsys.readouterr()
    assert "run.json does not name the tokenizer: pass --tokenizer; token ids are shown" in printed.err
    shown = printed.out
    assert shown.startswith("rich/0  stopped\ntask     What is 3 + 4?\nanswer   7\n")
    assert (
        "turn 1  3 tokens, after turn 0, prompt 45 (96% cached)" in shown and "weights v1 then v2\n  4 5 6\n" in shown
    )
    assert "rejected by the agent: never trained" in shown
    assert "engine call failed: EngineUnavailableError" in shown
    assert "  turn 4  1 token, called by turn 3" in shown  # indented: inside a tool call
    assert 'tool slow  timeout, 0.01 s\n  call     {"x": 2}\n  result   timed out\n' in shown
    assert "forked, rewrites the history of turn 6" in shown and "(nothing was sampled)" in shown
    assert "4 branches" in shown and "  0 > 1 > 3 > 6      56       10" in shown
    assert "reward   0.25\n         exact 0.25\n" in shown
    assert "ended    stopped: the agent's own code stopped it" in shown
    assert "max_turns" not in shown


def test_a_recorded_tokenizer_that_is_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(folder / "run.json", {**(read_run(folder) or {}), "tokenizer": "/nowhere/model"})
    assert main(["show", str(folder), "rich"]) == 0
    printed = capsys.readouterr()
    assert "the tokenizer that run.json names no longer exists (/nowhere/model): pass --tokenizer" in printed.err
    assert "  4 5 6\n" in printed.out


def test_limits_and_rollbacks_are_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ended    turn_limit: it reached its limit of turns (max_turns=3)" in lines(
        capsys, 0, str(folder), "limited"
    )
    shown = lines(capsys, 0, str(folder), "resumed")
    assert "resumed by worker 1" in shown and "rolled back to 2 turns: the agent went another way" in shown
    assert shown.count("  rolled back") == 1


def test_other_models_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with written_run(tmp_path, sealed=False) as writer:
        spoken_episode(writer.write)
    shown = "\n".join(lines(capsys, 0, str(tmp_path), "spoken"))
    assert "model user  0.5 s\n  asked    What now?\n  said     I need a flat.\n" in shown
    assert "model user  0.5 s, 3 attempts\n  asked    What now?\n  failed   OtherModelError: it is gone\n" in shown
    assert shown.index("I need a flat.") < shown.index("Thanks.") < shown.index("model judge")
    assert ids(capsys, tmp_path, "--text", "need a flat") == ["spoken/0"]
    step = json.loads("".join(lines(capsys, 0, str(tmp_path), "spoken", "--json")))["steps"][2]
    assert (step["kind"], step["name"], step["text"]) == ("model", "user", "I need a flat.")


def test_adapter_and_staleness_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with written_run(tmp_path, sealed=False) as writer:
        adapted_episode(writer.write)
    shown = "\n".join(lines(capsys, 0, str(tmp_path), "adapted"))
    assert "weights default+lora:policy-v7\n" in shown
    decided = "staleness dropped: the oldest token of the group has age 3, at most 1; weights default+lora:policy-v10"
    assert decided in shown


def test_wrong_usage(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(tmp_path / "nothing")], "is not the directory of a run"),
        ([str(folder), "nope\x1b"], r"has no episode 'nope\x1b'"),
        ([str(folder), "add-"], "several episodes start with 'add-': 'add-2/2', 'add-10/2'\n  give more of the id"),
        ([str(folder), "rich/0", "--tokenizer", str(tmp_path)], "tokenizer must be"),
        ([str(folder), "--text", "x" * 201], "--text must have 1 to 200 characters"),
    ):
        assert main(["show", *arguments]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out
    assert exit_code(["show", str(folder), "--ended", "never"]) == 2


def test_hostile_text_stays_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with written_run(tmp_path, sealed=False, tokenizer=HOSTILE, settings={"limits": {"max_turns": HOSTILE}}) as writer:
        recorder = Recorder(writer.write, task=f"t{HOSTILE}", prompt=HOSTILE, answer={HOSTILE: HOSTILE})
        detail = {"agent": HOSTILE, "failed_calls": [HOSTILE]}
        recorder.call(None, context=[1], sampled=[2], detail=detail, finish_reason=HOSTILE, finish_detail=HOSTILE)
        recorder.tool("id", HOSTILE, content=HOSTILE, outcome=HOSTILE)
        recorder.call_error(HOSTILE)
        recorder.append(EventKind.REWARD, {"value": 1.0, "parts": {HOSTILE: 1.0}, "steps": [], "error": None})
        recorder.end("turn_limit", text=HOSTILE, failure={"kind": HOSTILE, "message": HOSTILE, "where": HOSTILE})
    for arguments in ([], ["t"], ["t", "--tokens"], ["t", "--context"], ["t", "--json"], ["--json"]):
        assert main(["show", str(tmp_path), *arguments]) == 0
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert text.replace("\n", "").isprintable(), arguments
        assert arguments != ["t"] or "  call     (not recorded)\n" in printed.out


def test_malformed_events_are_shown_as_absent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with written_run(tmp_path, sealed=False) as writer:
        values: list[Any] = [None, 7, "x", [], {}, [[[]]], {"a": [1]}]
        for task, wrong in enumerate(values):
            recorder = Recorder(writer.write, task=f"t{task}")
            for kind in EventKind:
                if kind in (EventKind.BEGIN, EventKind.END, EventKind.RESUME):
                    continue
                names = ("turn", "turns", "detail", "versions", "name", "result", "value", "parts", "message", "steps")
                recorder.append(kind, dict.fromkeys(names, wrong))
            end = ("end_reason", "metrics", "failure", "rejected", "text")
            recorder.append(EventKind.END, dict.fromkeys(end, wrong))
            recorder.append(EventKind.RESUME, dict.fromkeys(("from_event", "head", "worker"), wrong))
    assert "7 episodes: " in lines(capsys, 0, str(tmp_path))[0]
    for task in range(7):
        for more in ([], ["--tokens", "--context"], ["--json"]):
            assert main(["show", str(tmp_path), f"t{task}/0", *more]) == 0
    capsys.readouterr()


@tool
def step(number: int) -> str:
    """Make a step.

    Args:
        number: Which.
    """
    if number == 2:
        raise ValueError("no second step")
    return f"step {number}"


def build(task: Any, model: Any) -> Agent:
    return Agent(model=model, tools=[step], callback_handler=None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show") / "run"
    reward = {"reward": 0.5, "format": 1.0}
    engine = PromptEngine(steps(1, end="the end\nof it – 好 🙂"))
    tasks, limits = [{"prompt": "one", "id": "one"}], Limits(max_turns=5)
    asyncio.run(run(build, tasks, engine, folder, reward=lambda episode: reward, limits=limits))
    return folder


def test_rollout_records_the_tokenizer(recorded: Path) -> None:
    name = (read_run(recorded) or {})["tokenizer"]
    assert name == tokenizer(FAMILY).name_or_path and (name == FAMILIES[FAMILY] or Path(name).is_absolute())


def test_turns_as_text(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(recorded), "one", "--tokenizer", TOKENIZER]) == 0
    shown = capsys.readouterr().out
    assert '{"name": "step", "arguments": {"number": 1}}' in shown
    assert '  call     {"number": 1}\n  result   step 1\n' in shown
    assert "  the end\n  of it – 好 🙂<|im_end|>\n" in shown
    assert "reward   0.5\n         format 1\n" in shown.replace("1.0", "1")
    assert "ended    answered: the agent finished by itself" in shown and "\x1b" not in shown


def test_tokens_one_by_one(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(recorded), "one", "--tokenizer", TOKENIZER, "--tokens", "--context"]) == 0
    shown = capsys.readouterr().out
    assert "token      id  logprob" in shown and '"<|im_end|>"' in shown and "  context  <|im_start|>" in shown


def test_json_of_one_episode(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(recorded), "one", "--tokenizer", TOKENIZER, "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()
    view = json.loads(printed)
    assert view["end"]["end_reason"] == "answered"
    assert (view["reward"]["value"], view["reward"]["parts"]) == (0.5, {"format": 1.0})
    turns = [one for one in view["steps"] if one["kind"] == "call"]
    assert "".join(turns[-1]["tokens"]["texts"]) == "the end\nof it – 好 🙂<|im_end|>"
    (record,) = Ledger(recorded).episodes()
    assert [turn["tokens"]["ids"] for turn in turns] == [list(call.arrays["sampled"]) for call in record.calls]
    assert [turn["tokens"]["logprobs"] for turn in turns] == [list(call.arrays["logprobs"]) for call in record.calls]
    assert view["branches"][0]["path"] == [0, 1] and view["branches"][0]["main"]


def test_a_tool_that_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(run(build, ["go"], PromptEngine(steps(2)), tmp_path / "run", limits=Limits(max_turns=3)))
    (id,) = Ledger(tmp_path / "run").ids()
    shown = lines(capsys, 0, str(tmp_path / "run"), id, "--ids")
    assert any(line.startswith("tool step  raised, ") or line.startswith("tool step  error, ") for line in shown)
    assert any("raised   ValueError: no second step" in line and "test_show.py" in line for line in shown)


@pytest.mark.parametrize(("changed", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_on_a_terminal(folder: Path, changed: dict[str, str], coloured: bool) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    environment |= changed
    words = [sys.executable, "-m", "strands_sglang.cli", "show", str(folder)]
    done = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, env=environment, timeout=120)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0 and ("\x1b[32manswered\x1b[0m" in shown) is coloured
    assert ("\x1b" in shown) is coloured


def test_tokens_are_coloured_by_logprob(recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(_command, "wants_colours", lambda stream=None: True)
    shown = "\n".join(lines(capsys, 0, str(recorded), "one", "--tokenizer", TOKENIZER))
    assert "sampled tokens by probability: " in shown
    (record,) = Ledger(recorded).episodes()
    texts = TokenTexts(tokenizer(FAMILY)).texts_of(list(record.calls[-1].arrays["sampled"]))
    first = Paint(True)(texts[0], probability_style(record.calls[-1].arrays["logprobs"][0]))
    assert first in shown


def test_levels() -> None:
    chances = (1.0, 0.9, 0.6, 0.2, 0.02, 0.001, 0.0)
    logprobs = [math.log(chance) if chance else -math.inf for chance in chances]
    assert [probability_style(one) for one in logprobs] == [
        *("likely", "likely", "probable", "possible", "unlikely", "improbable", "improbable")
    ]


def test_end_reasons_are_those_of_the_package() -> None:
    assert set(WHY) == {one.value for one in EndReason} | {"unfinished"}


def test_ids_that_the_tokenizer_does_not_have() -> None:
    assert TokenTexts(tokenizer(FAMILY)).texts_of([10**6, -5]) == ["<1000000>", "<-5>"]


def test_natural_order() -> None:
    names = ["task-10/0", "task-2/1", "task-2/0", "b", "a"]
    assert sorted(names, key=natural_key) == ["a", "b", "task-2/0", "task-2/1", "task-10/0"]


def test_a_view_never_raises_without_a_begin(tmp_path: Path) -> None:
    from strands_sglang.ledger.record import EpisodeRecord

    shown = shown_episode(EpisodeRecord("x/0", ()), None)
    assert shown["end"] is None and shown["branches"] == [] and not shown["steps"]
