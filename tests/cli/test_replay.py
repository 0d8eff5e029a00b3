"""`strands-sglang replay`: output, exit codes, and settings from run.json."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from strands import Agent

from strands_sglang.cli._recorded_run import run_settings
from strands_sglang.cli.main import main
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.runs import Limits, ReplayResult, ReplayVerdict
from strands_sglang.runs.workers.spec import RunSpec
from strands_sglang.tool_parsers import HermesToolParser
from support.cli import exit_code
from support.families import tokenizer_path
from support.ledger.episodes import RUN, plain_episode, written_run
from support.rollout.agent_kinds import build, step
from support.rollout.scripts import FAMILY, PromptEngine, run, steps

TOKENIZER = tokenizer_path(FAMILY)


def other_build(task: Any, model: Any) -> Agent:
    return Agent(model=model, tools=[step], system_prompt="Something else.", callback_handler=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    limits, sampling = Limits(max_turns=2, tool_timeout=30.0), {"temperature": 0.5}
    options: dict[str, Any] = {"limits": limits, "sampling_params": sampling, "tool_parser": HermesToolParser()}
    asyncio.run(run(build, ["one", "two"], PromptEngine(steps(3)), tmp_path / "run", **options))
    return tmp_path / "run"


def arguments(folder: Path, *more: str, agent: str = "build") -> list[str]:
    return ["replay", str(folder), "--agent", f"{__name__}:{agent}", "--tokenizer", TOKENIZER, *more]


def test_replayed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder)) == 0
    printed = capsys.readouterr()
    assert printed.out == "2 episodes: 2 identical (results from the ledger; no tool was run)\n"
    assert "run.json stores 'tool_parser' only as text" in printed.err
    ids = [
        json.loads(line)["episode"]
        for line in lines_of(folder, capsys, 0, "--model-options", '{"tool_parser":"hermes"}')
    ]
    assert [json.loads(line)["episode"] for line in lines_of(folder, capsys, 0, "--episode", ids[1])] == ids[1:]
    assert {json.loads(line)["verdict"] for line in lines_of(folder, capsys, 1, agent="other_build")} == {"diverged"}


def test_the_tokenizer_is_the_one_in_run_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*arguments(folder)[:4], "--model-options", '{"tool_parser":"hermes"}']
    assert main(given) == 0
    assert capsys.readouterr().out.startswith("2 episodes: 2 identical")
    run_file = orjson.loads((folder / "run.json").read_bytes())
    del run_file["tokenizer"]
    (folder / "run.json").write_bytes(orjson.dumps(run_file))
    assert main(given) == 2
    assert "does not name the tokenizer\n  pass --tokenizer" in capsys.readouterr().err


def test_equal_differences_are_listed_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder, "--model-options", '{"tool_parser":"hermes"}', agent="other_build")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 episodes: 2 diverged (results from the ledger; no tool was run)"
    assert lines[1] == "  2 diverged: the agent sends another prompt: the system prompt was changed"
    assert lines[2].startswith("    first: episode ") and lines[2].endswith(", event 1")
    assert lines[3].startswith("    from token ") and lines[3].endswith('"<|im_start|>system\\n"')
    assert lines[4].startswith('    recorded: "You are Qwen')
    assert lines[5].startswith('    now:      "Something else.')
    assert len(lines) == 6
    one = json.loads(lines_of(folder, capsys, 1, agent="other_build")[0])
    assert one["difference"]["cause"] == "the system prompt was changed" and one["difference"]["event"] == 1


def lines_of(
    folder: Path, capsys: pytest.CaptureFixture[str], code: int, *more: str, agent: str = "build"
) -> list[str]:
    assert main(arguments(folder, "--json", *more, agent=agent)) == code
    return capsys.readouterr().out.splitlines()


def test_nothing_to_replay(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("empty", "file", "nowhere"):
        assert main(arguments(tmp_path / name)) == 2
        printed = capsys.readouterr()
        assert f"{tmp_path / name} is not the directory of a run" in printed.err and not printed.out
    assert main(arguments(folder, "--episode", "nope")) == 2
    assert "has no episode 'nope'" in capsys.readouterr().err
    write_run(tmp_path / "begun", {"run": RUN})
    assert main(arguments(tmp_path / "begun")) == 3
    printed = capsys.readouterr()
    assert "nothing to replay" in printed.err and not printed.out


def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, words in (
        (("--limits", '{"turn": 1}'), "limits must be among max_turns, max_tool_calls"),
        (("--limits", '{"max_turns": 0}'), "Limits.max_turns must be an int >= 1"),
        (("--model-options", '{"directory": "x"}'), "settings of the model only, got 'directory'"),
        (("--model-options", '{"temprature": 1}'), "unknown option 'temprature'"),
    ):
        assert main(arguments(folder, *more)) == 2
        assert words in capsys.readouterr().err
    for text in ("{", "[1]"):
        for option in ("--limits", "--model-options"):
            code = exit_code(arguments(folder, option, text))
            assert code == 2 and "not " in capsys.readouterr().err


def test_ledger_text_cannot_add_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "a\n0 episodes: all identical\x1b[2K\u202e"
    with written_run(tmp_path, sealed=False) as writer:
        plain_episode(writer.write, task=evil)

    async def replayed(*args: Any, **kwargs: Any) -> list[ReplayResult]:
        return [ReplayResult(f"{evil}/0", ReplayVerdict.DIVERGED, 3, f"event 3 of {evil}")]

    monkeypatch.setattr("strands_sglang.runs.replay", replayed)
    assert main(arguments(tmp_path)) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("1 episode: 1 diverged") and second.isprintable() and third.isprintable()
    assert second.startswith("  1 diverged: event ... of a")
    assert third == r"    episode a\n0 episodes: all identical\x1b[2K\u202e/0, event 3"
    assert main(arguments(tmp_path, "--json")) == 1
    assert capsys.readouterr().out.strip().isascii()
    assert main(arguments(tmp_path, "--episode", evil)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.isprintable() for line in lines)


def recorded(limits: Limits, **options: Any) -> dict[str, Any]:
    return {"settings": RunSpec(build, None, None, PromptEngine(steps(1)), limits, options).settings()}


def test_settings_from_run_json() -> None:
    limits = Limits(max_turns=3, tool_timeout=1.5)
    options: dict[str, Any] = {
        "sampling_params": {"temperature": 0.5, "stop": ["<end>"]},
        "enable_thinking": False,
        "chat_template_kwargs": {"a": [1]},
        "on_trim": "fork",
        "deadline": None,
        "reasoning_effort": "high",
        "tool_parser": "hermes",
        "chat_template": "<|x|>{{ messages }}(<|y|>)",
    }
    run_file = orjson.loads(orjson.dumps(recorded(limits, **options)))
    settings = run_settings(run_file)
    assert (settings.limits, settings.model_options, settings.left_out) == (limits, options, ())
    assert run_settings(recorded(limits, tool_parser="qwen_xml")).model_options == {"tool_parser": "qwen_xml"}
    not_plain = recorded(limits, tool_parser=HermesToolParser(), adapter=object(), path=Path("x"), enable_thinking=True)
    settings = run_settings(not_plain)
    assert settings.model_options == {"enable_thinking": True}
    assert settings.left_out == ("tool_parser", "adapter", "path")
    # Given values take precedence: limits as a whole, options by name, under either name.
    settings = run_settings(run_file, {"max_tool_calls": 2}, {"params": {"temperature": 1.0}, "on_trim": "refuse"})
    assert settings.limits == Limits(max_tool_calls=2)
    assert settings.model_options == {
        **{name: value for name, value in options.items() if name != "sampling_params"},
        **{"params": {"temperature": 1.0}, "on_trim": "refuse"},
    }
    # Unknown values in a run.json of another version are ignored.
    strange: dict[str, Any] = {"limits": {"max_turns": 2, "wings": 3}, "tokenizer": "x", "client": "y", "base_url": "z"}
    settings = run_settings({"settings": strange})
    assert (settings.limits, settings.model_options) == (Limits(max_turns=2), {})
    for other in ({}, {"settings": None}, {"settings": {"limits": 3}}):
        assert run_settings(other).limits == Limits()
    with pytest.raises(ConfigurationError, match="turns"):
        run_settings({"settings": {"limits": {"max_turns": "x"}}}, None, {})
