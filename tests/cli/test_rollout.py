"""`strands-sglang rollout` and `eval`: runs, resumes, options, reports and exit codes."""

from __future__ import annotations

import inspect
import io
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from strands import Agent

from cli.test_main import started
from strands_sglang.cli import _run_options
from strands_sglang.cli.main import main
from strands_sglang.errors import EngineUnavailableError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.run_dir import read_run
from strands_sglang.runs import Limits, RunOptions, rollout
from strands_sglang.runs.monitoring.trackers import TRACKERS
from support.cli import exit_code
from support.families import tokenizer_path
from support.interrupts import press_ctrl_c
from support.rollout.agent_kinds import build  # noqa: F401, named on the command line
from support.rollout.scripts import FAMILY, PromptEngine, asked, assert_proved, steps
from support.scripted_engine import Answer

TOKENIZER = tokenizer_path(FAMILY)
SEEN: list[Any] = []


def broken_build(task: Any, model: Any) -> Agent:
    raise KeyError("no such agent")


def blocking_build(task: Any, model: Any) -> Agent:
    print("under way", flush=True)
    return Agent(model=model, callback_handler=None)


def engine() -> PromptEngine:
    return PromptEngine(steps(1, end="the answer is 7"))


def seen_engine() -> PromptEngine:
    SEEN.append(made := engine())
    return made


def slow_engine() -> PromptEngine:
    made = PromptEngine(steps(0))
    made.delay = 3600
    return made


def _half(prompt: str, before: int) -> Answer:
    if "fails" in asked(prompt):
        return EngineUnavailableError("gone", attempts=1)
    return "7" if before % 2 == 0 else "8"


def half_engine() -> PromptEngine:
    return PromptEngine(_half)


def reward(episode: Any) -> float:
    return float(str(episode.task.answer) in episode.text)


def broken_reward(episode: Any) -> float:
    raise ValueError("cannot score")


def keep_none(group: Any) -> bool:
    return False


def on_episode(episode: Any) -> None:
    SEEN.append(episode.id)


class Own:
    def begin(self, run: Any) -> None:
        SEEN.append(run.name)

    def log(self, metrics: Any, step: int) -> None: ...

    def end(self, failed: bool) -> None: ...


def tasks(folder: Path, *values: Any) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in values) + "\n\n")
    return str(path)


def arguments(command: str, path: str, *more: str, client: str = "engine", agent: str = "build") -> list[str]:
    named = ["--agent", f"{__name__}:{agent}", "--client", f"{__name__}:{client}", "--tokenizer", TOKENIZER]
    return [command, path, *named, "--progress", "none", *more]


def with_reward(name: str = "reward") -> list[str]:
    return ["--reward", f"{__name__}:{name}"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return tasks(tmp_path, {"prompt": "3 + 4?", "answer": 7, "id": "sum", "level": 1}, "another")


def test_a_run(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    given = arguments("rollout", path, "-d", str(folder), "-n", "2", "--max-turns", "5", "--temperature", "0.5")
    given += with_reward()
    assert main(given) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "4 episodes: 4 answered" and "  reward   0.5 mean of 4" in lines
    assert lines[-3] == f"  see      strands-sglang show {folder}"
    assert [line.split()[1] for line in lines[-2:]] == ["view", "verify"]
    assert_proved(folder)
    recorded = read_run(folder) or {}
    assert recorded["settings"]["limits"]["max_turns"] == 5
    assert recorded["settings"]["sampling_params"] == {"temperature": 0.5} and recorded["samples_per_task"] == 2
    record = Ledger(folder).episode("sum/0")
    assert record.begin is not None and record.begin.data["task"]["data"] == {"level": 1}
    # The same command restores everything and samples nothing.
    assert main([*given, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["metrics"]["restored"] == 4 and report["metrics"]["turns"] == 0
    assert report["end_reasons"] == {"answered": 4} and report["directory"] == str(folder)


def test_failures_and_filters(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("rollout", path, "-d", str(tmp_path / "a"), *with_reward("broken_reward"))) == 1
    assert "2 rewards failed" in capsys.readouterr().out
    assert main(arguments("rollout", path, "-d", str(tmp_path / "b"), "--filter", f"{__name__}:keep_none")) == 3
    assert "groups   0 kept, 2 dropped" in capsys.readouterr().out
    many = tasks(tmp_path, *(f"task {number}" for number in range(9)))
    assert main(arguments("rollout", many, "-d", str(tmp_path / "c"), agent="broken_build")) == 1
    printed = capsys.readouterr()
    assert "the first 8 episodes all failed with the same error" in printed.err and not printed.out


def test_callbacks_and_trackers(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SEEN.clear()
    more = ["--on-episode", f"{__name__}:on_episode", "--tracker", f"{__name__}:Own", "--first", "1"]
    assert main(arguments("rollout", path, "-d", str(tmp_path / "run"), *more)) == 0
    assert SEEN == ["run", "sum/0"]


def test_keys_of_other_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"tasks": "-", "prompt_key": "question", "answer_key": "solution", "id_key": "nr", "first": None}
    line = {"question": "3 + 4?", "solution": 7, "nr": 12, "prompt": "ignored", "source": "x"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(line) + "\n"))
    (task,) = _run_options.read_tasks(given)
    assert (task.prompt, task.answer, task.id, task.data) == ("3 + 4?", 7, "12", {"source": "x"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('"fine"\n{"prompt"', "tasks.jsonl, line 2: "),
        ('{"question": 1}', "line 1: a task must be a Task, a str, or a dict with the key 'prompt'"),
        ("", "has no tasks"),
        (None, "TASKS must be a JSON Lines file"),
    ],
)
def test_wrong_tasks(content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if content is not None:
        (tmp_path / "tasks.jsonl").write_text(content)
    assert main(arguments("rollout", str(tmp_path / "tasks.jsonl"), "-d", str(tmp_path / "run"))) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out and not (tmp_path / "run").exists()


def test_wrong_usage(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["rollout", path, "-d", str(tmp_path / "run"), "--agent", f"{__name__}:build"]
    url = ["--base-url", "http://127.0.0.1:9"]
    for given, words in (
        (["eval", path, "--agent", f"{__name__}:build", *with_reward()], "--tokenizer must be given"),
        ([*base, "--tokenizer", "x"], "--base-url must be given"),
        ([*base, *url, "--tokenizer", "x", "--client-options", '{"nope": 1}'], "--client-options has no 'nope'"),
        ([*base, *url, "--tokenizer", "x", "--client", "a:b"], "must not be given together"),
        ([*base, *url, "--tokenizer", TOKENIZER, "--tracker", "comet"], "tracker must be one of"),
        ([*base, *url, "--tokenizer", TOKENIZER, "--model-options", '{"concurency": 1}'], "did you mean 'concurrency'"),
        ([*base, *url, "--tokenizer", TOKENIZER], "could not connect to http://127.0.0.1:9"),
        (["eval", path], "--agent must be given"),
        (["eval", path, "--recorded", str(tmp_path)], "TASKS must not be given with --recorded"),
        (["eval", "--recorded", str(tmp_path)], "is not the directory of a run"),
        (["eval", "--recorded", str(tmp_path), "--json", "--markdown"], "only one of --json and --markdown"),
    ):
        assert main(given) == 2, given
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out
    for given in (["rollout", path, "--agent", "a:b"], base, [*base, "-n", "0"], [*base, "--limits", "{}"]):
        assert exit_code(given) == 2


def test_every_argument_of_rollout_has_an_option() -> None:
    params = [*_run_options.task_params(required=True), *_run_options.setting_params(), *_run_options.group_params()]
    names = {str(param.name) for param in params} | {"directory"}
    known = set(inspect.signature(rollout).parameters) - {"build", "filters", "limits", "options", "model_options"}
    assert known <= names and {"agent", "filter", "model_options", "sampling_params"} <= names
    assert {one.name for one in fields(Limits)} == set(_run_options.LIMITS)
    assert {one.name for one in fields(RunOptions)} <= names
    assert tuple(TRACKERS) == _run_options.TRACKERS


def test_defaults_in_the_help_are_true() -> None:
    params = [*_run_options.task_params(required=True), *_run_options.setting_params()]
    given = {one.name: one.default for one in fields(RunOptions)}
    given |= {name: one.default for name, one in inspect.signature(rollout).parameters.items()}
    checked = set()
    for param in params:
        if isinstance(param, click.Option) and (told := re.findall(r"\(default: ([^,;)]+)", param.help or "")):
            default = given[str(param.name)]
            words = {True: "yes", False: "no"}.get(default) if isinstance(default, bool) else None
            assert told[0] == (words or f"{getattr(default, 'value', default):{'g' if type(default) is float else ''}}")
            checked.add(param.name)
    assert {"samples_per_task", "concurrency", "prefix_warmup", "durability", "preflight"} <= checked


def test_options_of_the_run(path: str) -> None:
    from strands_sglang.cli.commands.rollout import command

    given = ["--durability", "machine", "--prefix-warmup", "0", "--stop-if-first-fail", "0", "--no-preflight"]
    given += ["--rerun-tool", "a", "--rerun-tool", "b", "--tool-arguments", "digest", "--tool-timeout", "1.5"]
    given += ["--sampling-params", '{"top_p": 0.9}', "--model-options", '{"enable_thinking": false}']
    context = command.make_context("rollout", arguments("rollout", path, *given, "-d", "x")[1:])
    made = _run_options.rollout_arguments(context.params)
    options = made["options"]
    assert (options.durability.value, options.prefix_warmup, options.stop_if_first_fail) == ("machine", None, None)
    assert (options.preflight, options.tune_runtime, set(options.rerun_tools)) == (False, True, {"a", "b"})
    assert made["limits"] == Limits(tool_timeout=1.5) and made["sampling_params"] == {"top_p": 0.9}
    assert made["enable_thinking"] is False and made["directory"] == "x" and "concurrency" not in made


def test_the_api_key_comes_from_the_environment(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"client": None, "base_url": "http://localhost:1", "client_options": None, "concurrency": 5}
    assert _run_options._engine(given) == {"base_url": "http://localhost:1"}
    monkeypatch.setenv(_run_options.API_KEY, "secret")
    client = _run_options._engine(given)["client"]
    assert client._headers["Authorization"] == "Bearer secret" and client._settings["max_connections"] == 5


def test_ctrl_c_says_how_to_resume(path: str, tmp_path: Path) -> None:
    name = f"{Path(__file__).stem}"
    given = ["rollout", path, "-d", str(tmp_path / "run"), "--agent", f"{name}:blocking_build", "--first", "1"]
    given += ["--client", f"{name}:slow_engine", "--tokenizer", TOKENIZER, "--progress", "none"]
    process = started(*given, stdout=subprocess.PIPE)
    (line,) = press_ctrl_c(process)
    assert process.returncode == 130
    assert line.startswith("interrupted: 0 of 1 episode") and f"to resume: {sys.executable}" in line


def test_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tasks(tmp_path, {"prompt": "easy?", "answer": 7, "id": "a"}, {"prompt": "hard?", "answer": 9, "id": "b"})
    folder = tmp_path / "run"
    given = arguments("eval", path, "-d", str(folder), "-n", "4", "-k", "1,2,4", *with_reward(), client="half_engine")
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("8 episodes of 2 tasks: 8 answered; an episode passes with a reward of at least 1\n")
    assert "pass@2" in shown and "95% interval" in shown
    row = next(line for line in shown.splitlines() if line.startswith("a ")).split()
    assert row[1:4] == ["4", "of", "4"] and row[4] == "2"
    assert main(["eval", "--recorded", str(folder), "--json", "-k", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["reward"]["value"] == 0.25 and report["pass_at"]["2"]["value"] == pytest.approx((1 - 1 / 6) / 2)
    assert [task["task"] for task in report["tasks"]] == ["a", "b"]
    assert main(["eval", "--recorded", str(folder), "--markdown"]) == 0
    assert "| a | 4 of 4 | 2 | 0.5 " in capsys.readouterr().out
    assert main(["eval", "--recorded", str(folder), "--threshold", "0"]) == 0
    assert main([*given[:2], *given[2:], "--json"]) == 0  # restored


def test_evals_with_one_seed_send_the_same_seeds(tmp_path: Path) -> None:
    """In whatever order, and however many at once."""
    lines = [{"prompt": f"question {number}?", "answer": 7, "id": str(number)} for number in range(4)]
    forwards, backwards = tasks(tmp_path, *lines), tmp_path / "backwards.jsonl"
    backwards.write_text("\n".join(json.dumps(line) for line in reversed(lines)))

    def sent(path: Any, *more: str) -> list[tuple[int, str]]:
        SEEN.clear()
        assert main(arguments("eval", str(path), "-n", "2", *with_reward(), *more, client="seen_engine")) == 0
        (seen,) = SEEN
        return sorted((call.sampling["sampling_seed"], call.asked["prompt"]) for call in seen.calls if call.answered)

    first = sent(forwards, "--seed", "7")
    assert len(first) == len({seed for seed, _ in first}) == 4 * 2 * 2
    assert sent(backwards, "--seed", "7", "--concurrency", "1", "-d", str(tmp_path / "run")) == first
    assert not {seed for seed, _ in sent(forwards, "--seed", "8")} & {seed for seed, _ in first}


def test_eval_with_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tasks(tmp_path, {"prompt": "easy?", "answer": 7, "id": "a"}, {"prompt": "this fails", "id": "b"})
    given = arguments("eval", path, *with_reward(), client="half_engine")
    assert main([*given, "-d", str(tmp_path / "run")]) == 1
    assert "1 without a reward, left out" in capsys.readouterr().out
    assert main(["eval", "--recorded", str(tmp_path / "run"), "--unscored", "zero", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reward"]["value"] == 0.5
    alone = tasks(tmp_path, {"prompt": "this fails", "id": "b"})
    assert main(arguments("eval", alone, *with_reward(), client="half_engine")) == 3
