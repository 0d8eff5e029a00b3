"""`rollout` runs agents that are processes: their turns, limits, failures and ends."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import replay, rollout, score_run
from strands_sglang.cli.main import main
from strands_sglang.errors import ConfigurationError
from strands_sglang.gateway import AgentProcess, Network, supervisor
from strands_sglang.gateway import process as process_module
from strands_sglang.ledger import EpisodeRecord, Ledger
from strands_sglang.proof import Verdict, verify
from strands_sglang.runs import EndReason, Limits, ReplayVerdict, RunResult
from strands_sglang.trainers import write_jsonl
from strands_sglang.viewer import export_html
from strands_sglang.viewer.episode import episode_view
from strands_sglang.viewer.search import search_run
from support.families import tokenizer
from support.gateway.programs import three_turns
from support.scripted_engine import Reply, ScriptedEngine, thought, tool_call

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "tests" / "support" / "gateway" / "programs" / "calculator.py")
CALL = thought("Compute.", tool_call("calculator", expression="6 * 7"))


def script(prompt: str) -> str:
    """A call, and then its result as the answer."""
    if prompt.count("<tool_response>") == 0:
        return CALL
    return thought("Done.", f"It is {prompt.rpartition('<tool_response>')[2].split()[0]}.")


def recorded(directory: Path) -> EpisodeRecord:
    """Return the record of the only episode of a run."""
    ledger = Ledger(directory)
    (id,) = ledger.ids()
    return ledger.episode(id)


async def run(
    *arguments: str,
    network: Network = Network.HOST,
    limits: Limits | None = None,
    tasks: int = 1,
    answers: Any = script,
    process: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[RunResult, ScriptedEngine]:
    engine = ScriptedEngine(tokenizer("qwen3"), answers)

    def build(task: Any, model: Any) -> AgentProcess:
        given = {"command": [sys.executable, PROGRAM, task.prompt, *arguments], **(process or {})}
        return AgentProcess(network=network, **given)

    run = await rollout(
        build,
        [f"What is 6 * 7? ({number})" for number in range(tasks)],
        tokenizer=tokenizer("qwen3"),
        client=engine,
        limits=limits or Limits(),
        reward=lambda episode: float("42" in episode.text),
        **settings,
    )
    return run, engine


@pytest.mark.parametrize("network", list(Network))
async def test_an_agent_in_another_process_is_recorded_and_proved(network: Network, tmp_path: Path) -> None:
    run_result, _ = await run(network=network, directory=tmp_path, tasks=3)
    for episode in run_result:
        assert episode.end_reason is EndReason.ANSWERED, episode.failure
        assert (episode.text, episode.reward) == ("It is 42.", 1.0)
        assert [turn.join.value for turn in episode.tree] == ["root", "proved"]
        assert [message["role"] for message in episode.messages] == ["user", "assistant", "user", "assistant"]
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.trained == sum(len(turn.sampled) for one in run_result for turn in one.tree)


async def test_a_limit_ends_the_process() -> None:
    run_result, engine = await run(limits=Limits(max_turns=1))
    (episode,) = run_result
    assert episode.end_reason is EndReason.TURN_LIMIT
    assert len(engine.calls) == len(episode.tree) == 1


@pytest.mark.parametrize(
    ("limits", "sampled", "end_reason"),
    [
        (Limits(max_episode_tokens=40), [28, 12], EndReason.TOKEN_LIMIT),
        (Limits(max_episode_tokens=28), [28], EndReason.TOKEN_LIMIT),
        (Limits(max_new_tokens=12), [12], EndReason.TURN_TRUNCATED),
        (Limits(max_episode_tokens=41), [28, 13], EndReason.ANSWERED),
    ],
)
async def test_tokens_are_limited(limits: Limits, sampled: list[int], end_reason: EndReason, tmp_path: Path) -> None:
    """Whether the next call is refused, or the last reply is cut off, which the agent takes for its answer."""
    run_result, engine = await run(limits=limits, directory=tmp_path)
    (episode,) = run_result
    assert [len(turn.sampled) for turn in episode.tree] == sampled
    assert episode.end_reason is end_reason and not episode.failure
    assert len(engine.calls) == len(sampled) and verify(tmp_path).proved


async def test_a_reply_that_the_agent_keeps_short_is_an_answer() -> None:
    run_result, _ = await run(process={"env": {"MAX_TOKENS": "12"}}, limits=Limits(max_new_tokens=20))
    (episode,) = run_result
    assert (episode.end_reason, [len(turn.sampled) for turn in episode.tree]) == (EndReason.ANSWERED, [12])


async def test_tool_results_are_counted_and_limited() -> None:
    run_result, engine = await run()
    assert next(iter(run_result)).metrics.tool_calls == 1
    run_result, engine = await run(limits=Limits(max_tool_calls=1))
    (episode,) = run_result
    assert episode.end_reason is EndReason.TOOL_LIMIT
    assert len(engine.calls) == len(episode.tree) == 1


async def test_time_is_limited_and_nothing_is_left_running() -> None:
    run_result, _ = await run("--after-turn", "1", "hang", limits=Limits(episode_timeout=3))
    (episode,) = run_result
    assert episode.end_reason is EndReason.TIMEOUT


@pytest.mark.parametrize(("command", "what"), [("crash", "exit code 137"), ("fail", "something is missing")])
async def test_a_failed_process_is_an_agent_error(command: str, what: str) -> None:
    run_result, _ = await run("--after-turn", "1", command)
    (episode,) = run_result
    assert episode.end_reason is EndReason.AGENT_ERROR
    assert episode.failure is not None and what in episode.failure.message
    assert episode.reward is None


async def test_the_end_of_its_error_output_is_kept_if_it_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_result, _ = await run("--after-turn", "1", "warn", directory=tmp_path)
    assert next(iter(run_result)).end_reason is EndReason.ANSWERED
    ledger = Ledger(tmp_path)
    (id,) = ledger.ids()
    end = ledger.episode(id).end
    assert end is not None
    kept = end.data["error_output"]
    assert kept == "." * (len(kept) - 19) + " something is <odd>" and 1990 <= len(kept) <= 2000
    assert main(["show", str(tmp_path), id, "--full"]) == 0
    assert f"stderr   {kept}" in capsys.readouterr().out
    assert episode_view(ledger.episode(id))["end"]["error_output"] == kept
    assert id in search_run(tmp_path, "something is <odd>")
    assert verify(tmp_path).proved


@pytest.mark.parametrize(
    ("arguments", "limits", "end_reason"),
    [
        (("--after-turn", "1", "fail"), Limits(), EndReason.AGENT_ERROR),
        ((), Limits(max_turns=1), EndReason.TURN_LIMIT),
        (("--after-turn", "1", "hang"), Limits(episode_timeout=3), EndReason.TIMEOUT),
    ],
    ids=["fails", "limit", "time"],
)
async def test_what_a_process_wrote_is_kept_if_it_does_not_answer(
    arguments: tuple[str, ...], limits: Limits, end_reason: EndReason,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Codex and Claude Code report on their standard output what went wrong."""
    command = ["sh", "-c", "echo 'an <odd> report'; exec \"$@\"", "sh", sys.executable, PROGRAM, "6 * 7?", *arguments]
    run_result, _ = await run(process={"command": command}, limits=limits, directory=tmp_path)
    (episode,) = run_result
    assert (episode.end_reason, episode.text) == (end_reason, "")
    ledger = Ledger(tmp_path)
    (id,) = ledger.ids()
    end = ledger.episode(id).end
    assert end is not None and end.data["output"] == "an <odd> report"
    assert main(["show", str(tmp_path), id]) == 0
    assert "stdout   an <odd> report" in capsys.readouterr().out
    assert episode_view(ledger.episode(id))["end"]["output"] == "an <odd> report"
    assert id in search_run(tmp_path, "<odd> report")
    assert verify(tmp_path).verdict is not Verdict.BROKEN


async def test_what_is_the_answer_is_not_kept_twice(tmp_path: Path) -> None:
    await run(directory=tmp_path)
    ledger = Ledger(tmp_path)
    end = ledger.episode(ledger.ids()[0]).end
    assert end is not None and end.data["text"] == "It is 42." and "output" not in end.data


@pytest.mark.parametrize("network", list(Network))
async def test_a_long_prompt_may_be_an_argument(network: Network) -> None:
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:] == ['漢' * 40_000])", "漢" * 40_000]
    run_result, _ = await run(process={"command": command}, network=network)
    assert next(iter(run_result)).text == "True"


@pytest.mark.parametrize(
    ("process", "what"),
    [
        ({"command": ["echo", "漢" * 50_000]}, r"may have 128 KiB.* .AgentProcess\(prompt="),
        ({"command": ["echo", *["x" * 100_000] * 80]}, r"may have 128 KiB.* .AgentProcess\(prompt="),
        ({"env": {"PROMPT": "x" * 200_000}}, r"may have 128 KiB.* .AgentProcess\(prompt="),
        ({"command": ["echo", "\ud800"]}, "cannot be started: .* surrogates"),
        ({"command": ["echo", "\0"]}, "cannot be started: embedded null byte"),
        ({"command": ["no-such-program"]}, "cannot be started: .* No such file"),
        ({"cwd": "/no-such-folder"}, "cannot be started: .* No such file"),
        ({"prompt": "\ud800"}, r"AgentProcess\.prompt must be a text that UTF-8 can hold"),
    ],
)
async def test_a_process_that_cannot_be_started_is_told(process: dict[str, Any], what: str) -> None:
    run_result, _ = await run(process=process)
    (episode,) = run_result
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    assert episode.failure.kind in ("AgentProcessError", "ConfigurationError")
    assert re.search(what, episode.failure.message, re.DOTALL)


async def test_an_error_while_its_output_is_read_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    communicate = process_module._communicate

    async def fails(*arguments: Any) -> None:
        await communicate(*arguments)
        raise RuntimeError("the output cannot be read")

    monkeypatch.setattr(process_module, "_communicate", fails)
    run_result, _ = await run()
    (episode,) = run_result
    assert episode.end_reason is EndReason.AGENT_ERROR and episode.failure is not None
    assert episode.failure.message == "the output cannot be read"


async def test_ports_are_free_in_a_namespace() -> None:
    """An agent that fixes a web server tries it out on a usual one."""
    program = "import socket; print([bool(socket.create_server(('127.0.0.1', one))) for one in (3000, 8000, 8080)])"
    run_result, _ = await run(process={"command": [sys.executable, "-c", program]}, network=Network.GATEWAY_ONLY)
    assert next(iter(run_result)).text == "[True, True, True]"
    for told in ("docs/guides/coding-agents.md", "scripts/agents"):  # Codex can only be told in a file
        assert f"http://127.0.0.1:{process_module._PORT}/v1" in (ROOT / told).read_text()


def test_children_are_found_without_a_list_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kernels and sandboxes have no /proc/PID/task/TID/children."""

    def opened(path: str, *more: Any) -> Any:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return open(path, *more)

    monkeypatch.setattr(supervisor, "open", opened, raising=False)
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert child.pid in supervisor.children()
        finally:
            child.kill()


@pytest.mark.parametrize("network", list(Network))
async def test_processes_that_the_agent_leaves_are_ended(network: Network) -> None:
    run_result, _ = await run("--after-turn", "2", "spawn", network=network)
    (episode,) = run_result
    pid = int(episode.text.splitlines()[0])
    assert episode.end_reason is EndReason.ANSWERED
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_edited_reply_is_not_trained() -> None:
    run_result, _ = await run("--after-turn", "1", "edit")
    (episode,) = run_result
    assert episode.tree.rejected == {0}
    assert [turn.join.value for turn in episode.tree] == ["root", "forked"]


async def test_reports_say_how_copies_differed_and_what_was_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run("--after-turn", "1", "add", directory=tmp_path)
    certificate = verify(tmp_path)
    assert (certificate.protocols, certificate.echoes) == ({"chat": 2}, {"added_keys": 1})
    text = certificate.text()
    assert "2 chat turns" in text and "1 added keys" in text and "made no model calls elsewhere" in text
    (id,) = Ledger(tmp_path).ids()
    assert main(["show", str(tmp_path), id]) == 0
    shown = capsys.readouterr().out
    assert "copies of replies differ (added_keys)" in shown
    assert shown.count("asked for and not honoured, here and later: temperature=0.0") == 1
    details = [turn["detail"] for turn in episode_view(Ledger(tmp_path).episode(id))["turns"]]
    assert (details[0]["ignored"], details[1]["echoes"]) == (["temperature=0.0"], ["added_keys"])


async def test_a_run_is_replayed_scored_again_and_exported(tmp_path: Path) -> None:
    directory, rows = tmp_path / "run", tmp_path / "rows.jsonl"
    await run(directory=directory, tasks=2)

    def build(task: Any, model: Any) -> AgentProcess:
        return AgentProcess([sys.executable, PROGRAM, task.prompt])

    replayed = await replay(build, directory, tokenizer=tokenizer("qwen3"))
    assert [one.verdict for one in replayed] == [ReplayVerdict.IDENTICAL] * 2
    assert [one.now.value for one in await score_run(lambda episode: 0.5, directory)] == [0.5] * 2
    assert write_jsonl(directory, rows) == 2
    certificate = verify(directory, exported=rows)
    assert certificate.proved and certificate.exported is not None and certificate.exported.agreed == 2
    written = export_html(directory, tmp_path / "run.html", tokenizer=tokenizer("qwen3"))
    assert written == 2


async def test_an_agent_inherits_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "STRANDS_SGLANG_API_KEY": "of-the-engine",
        "STRANDS_SGLANG_ADMIN_TOKEN": "of-the-service",
        "HELLO": "world",
    }
    for name, value in {**given, "NO_PROXY": "tools.example"}.items():
        monkeypatch.setenv(name, value)
    models = ("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL")
    names = " ".join(f'"${name}"' for name in (*given, "NO_PROXY", *models))

    def build(task: Any, model: Any) -> AgentProcess:
        return AgentProcess(["sh", "-c", f"printf '%s;' {names}"])

    engine = ScriptedEngine(tokenizer("qwen3"), script)
    (episode,) = await rollout(build, ["Hello."], tokenizer=tokenizer("qwen3"), client=engine)
    assert episode.text == ";;world;127.0.0.1,localhost,tools.example;policy;policy-small;"


def test_a_command_is_a_list() -> None:
    with pytest.raises(ConfigurationError, match="must be a list of texts"):
        AgentProcess("echo hello")
    with pytest.raises(ConfigurationError, match=r"AgentProcess\.on_resume must be one of 'continue', 'restart'"):
        AgentProcess(["true"], on_resume="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("done", [0, 1])
async def test_a_resumed_run_answers_the_same_calls_from_its_record(done: int, tmp_path: Path) -> None:
    """The run dies in its next turn; the agent, which is started again, is not told."""
    stopped, made = asyncio.Event(), list[Any]()

    def interrupted(prompt: str) -> Reply:
        made.append(prompt)
        if len(made) <= done:
            return Reply(script(prompt))
        stopped.set()
        return Reply(hangs=True)

    first = asyncio.ensure_future(run(directory=tmp_path, answers=interrupted))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    result, engine = await run(directory=tmp_path)
    (episode,) = result
    assert (len(engine.calls), len(episode.tree), episode.text) == (2 - done, 2, "It is 42.")
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)
    assert certificate.tokens.rolled_back == 0


@pytest.mark.parametrize("done", [1, 2])
async def test_an_agent_that_was_killed_is_answered_from_the_record(done: int, tmp_path: Path) -> None:
    """It is started again by the next call, gets the same ids of calls, and nothing is trained twice."""
    killed, _ = await run("--after-turn", str(done), "crash", directory=tmp_path)
    (before,) = killed
    assert before.end_reason is EndReason.AGENT_ERROR and len(before.tree) == done
    resumed, engine = await run(directory=tmp_path)
    (episode,) = resumed
    assert (len(engine.calls), len(episode.tree), episode.text) == (2 - done, 2, "It is 42.")
    calls = [[block["toolUse"]["toolUseId"] for block in one.messages[1]["content"][-1:]] for one in (before, episode)]
    assert calls[0] == calls[1]
    certificate = verify(tmp_path)
    assert certificate.proved and certificate.tokens.rolled_back == 0
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)


async def test_an_agent_whose_tool_results_never_repeat_is_started_again(tmp_path: Path) -> None:
    stopped, made = asyncio.Event(), list[Any]()

    def interrupted(prompt: str) -> Reply:
        made.append(prompt)
        if len(made) == 1:
            return Reply(script(prompt))
        stopped.set()
        return Reply(hangs=True)

    process = {"on_resume": "restart"}
    first = asyncio.ensure_future(run(directory=tmp_path, answers=interrupted, process=process))
    await stopped.wait()
    first.cancel()
    await asyncio.wait({first})
    result, engine = await run(directory=tmp_path, process=process)
    (episode,) = result
    assert (len(engine.calls), len(episode.tree), episode.text) == (2, 2, "It is 42.")
    certificate = verify(tmp_path)
    assert certificate.proved
    assert certificate.tokens.rolled_back == len(episode.tree[0].sampled)
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)


async def goes_on(directory: Path, whole: RunResult, left: int) -> None:
    """Continue a run that was killed; it becomes what it would have been, with the same ids of calls."""
    resumed, engine = await three_turns.play(directory)
    (one,), (other,) = whole, resumed
    assert (one.messages, one.text) == (other.messages, other.text) and other.text == "It is 10112."
    assert len(engine.calls) == left
    certificate = verify(directory)
    assert certificate.proved and certificate.tokens.rolled_back == 0
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in one.tree)


async def test_a_run_that_is_killed_before_an_answer_is_sent(tmp_path: Path) -> None:
    """All three turns are recorded, and the agent has received two."""
    three_turns.killed(tmp_path / "run", "delivery", 3)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    before = list(recorded(tmp_path / "run").tree())
    whole, _ = await three_turns.play(tmp_path / "whole")
    await goes_on(tmp_path / "run", whole, left=0)
    # The first request of another agent is the recorded one; the result in its second is not, and two turns are cut.
    result, engine = await three_turns.play(tmp_path / "other", RESULT="7")
    (episode,) = result
    assert (episode.end_reason, episode.text, len(engine.calls)) == (EndReason.ANSWERED, "It is 7.", 2)
    assert [turn.parent for turn in episode.tree] == [None, 0, 1]
    certificate = verify(tmp_path / "other")
    assert certificate.proved and len(before) == 3
    assert certificate.tokens.rolled_back == sum(len(turn.sampled) for turn in before[1:])
    assert certificate.tokens.trained == sum(len(turn.sampled) for turn in episode.tree)


async def test_a_run_that_is_killed_while_it_samples(tmp_path: Path) -> None:
    three_turns.killed(tmp_path / "run", "sampling", 2)
    assert len(recorded(tmp_path / "run").tree()) == 1
    whole, _ = await three_turns.play(tmp_path / "whole")
    await goes_on(tmp_path / "run", whole, left=2)
