"""One run directory is one experiment: another agent, reward, setting or model is refused, or declared everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang import Limits, SGLangClient, SGLangModel, Task
from strands_sglang.cli.main import main
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.summary import run_rows
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import EndReason, Episode, experiment, score_run
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run, steps
from support.scripted import ScriptedServer, Wire

TASKS = [Task("go", id="a")]


def build(task: Task, model: SGLangModel) -> Any:
    return plain(model)


def other_build(task: Task, model: SGLangModel) -> Any:
    return plain(model, system_prompt="Be brief.")


def reward(episode: Episode) -> float:
    return 1.0


def other_reward(episode: Episode) -> float:
    return 0.5


FIRST: dict[str, Any] = {
    "build": build,
    "reward": reward,
    "limits": Limits(max_turns=9),
    "sampling_params": {"temperature": 1.0, "stop": ["\n\n\n"]},
    "extra": {"lora_path": "x" * 400},
}
CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "agent": ("agent", {"build": other_build}, r"test_experiment:build \w{8}\), got .*:other_build \w{8}"),
    "reward": ("reward", {"reward": other_reward}, "other_reward"),
    "temperature": (
        "settings",
        {"sampling_params": {"temperature": 0.7, "stop": ["\n\n\n"]}},
        "temperature 1.0, got 0.7",
    ),
    "limits": ("settings", {"limits": Limits(max_turns=8)}, "limits.max_turns 9, got 8"),
    "extra": ("settings", {"extra": {"lora_path": "y" * 400}}, "extra.lora_path"),
    "model": ("model", {"served": "policy-b"}, r"model must be .*policy-a.*got policy-b"),
    "packages": ("packages", {"version": "1.99.3"}, "packages must be .*strands-agents 1.99"),
}
SAME: dict[str, dict[str, Any]] = {
    "more samples and tasks": {"samples_per_task": 3, "tasks": [*TASKS, Task("go on", id="b")]},
    "concurrency": {"concurrency": 3},
    "patch version": {"version": "1.62.9"},
    "no reward": {"reward": None},
    "unknown model": {"served": None},
    "defaults written out": {"enable_thinking": None, "streaming": False, "deadline": 50.0},
}


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs the experiment with some things changed, in one directory."""
    engine = PromptEngine(steps(1))

    async def call(**changed: Any) -> Any:
        given: dict[str, Any] = {"samples_per_task": 1, "tasks": TASKS, "served": "policy-a", **FIRST, **changed}
        served, installed = given.pop("served"), given.pop("version", "1.62.0")

        async def served_model(client: Any) -> str | None:
            return served  # type: ignore[no-any-return]

        monkeypatch.setattr("strands_sglang.runs.controller.served_model", served_model)
        monkeypatch.setattr(experiment, "version", lambda name: installed)
        return await run(given.pop("build"), given.pop("tasks"), engine, tmp_path, **given)

    return call


@pytest.mark.parametrize("name", CHANGES)
async def test_another_experiment_is_refused_or_declared(
    name: str, again: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part, changed, told = CHANGES[name]
    await again()
    with pytest.raises(ConfigurationError, match=told) as refused:
        await again(samples_per_task=2, **changed)
    assert f"allow_changed=['{part}']" in str(refused.value) and f"--allow-changed {part}" in str(refused.value)
    with pytest.raises(ConfigurationError, match=told):
        await again(samples_per_task=2, allow_changed="model" if part != "model" else "agent", **changed)
    assert verify(tmp_path).proved and not verify(tmp_path).mixed
    mixed = await again(samples_per_task=2, allow_changed=part, **changed)
    certificate = verify(tmp_path)
    assert certificate.verdict is Verdict.PROVED, certificate.text()
    assert list(certificate.mixed) == [part] and sorted(certificate.mixed[part].values()) == [1, 1]
    assert f"MIXED        {part}: " in certificate.text() and part in certificate.to_dict()["experiment"]
    assert mixed.groups[0].mixed == certificate.mixed
    restored = await again(samples_per_task=2, allow_changed=part, **changed)
    assert restored.groups[0].mixed == certificate.mixed and restored[0].restored
    assert len({row["experiment"] for row in run_rows(tmp_path)}) == 2
    assert main(["show", str(tmp_path)]) == 0
    assert f"mixed in {part}: 1 and 1 episodes of 2 experiments" in capsys.readouterr().out
    for episode in mixed:
        assert main(["show", str(tmp_path), episode.id, "--ids"]) == 0
        assert f"mixed    {part} {episode.fingerprint[part]}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", SAME)
async def test_what_may_change_between_calls(name: str, again: Callable[..., Any], tmp_path: Path) -> None:
    await again()
    await again(**{"samples_per_task": 2, **SAME[name]})
    certificate = verify(tmp_path)
    assert certificate.proved and certificate.mixed == {}


async def test_nothing_is_mixed_while_no_result_depends_on_it(again: Callable[..., Any], tmp_path: Path) -> None:
    """A corrected agent or reward continues the run: failed episodes and missing scores depend on neither."""

    def broken(task: Task, model: SGLangModel) -> Any:
        raise RuntimeError("not yet")

    def broken_reward(episode: Episode) -> float:
        raise RuntimeError("not yet")

    failed = await again(build=broken, reward=broken_reward)
    assert [one.end_reason for one in failed] == [EndReason.AGENT_ERROR]
    unscored = await again(reward=broken_reward)
    assert unscored[0].end_reason is EndReason.ANSWERED and unscored[0].reward is None
    scored = await again()
    assert scored[0].reward == 1.0 and verify(tmp_path).proved and verify(tmp_path).mixed == {}
    assert "test_experiment:build" in scored[0].fingerprint["agent"]
    assert "test_experiment:reward" in scored[0].fingerprint["reward"]
    (record,) = Ledger(tmp_path).episodes()
    assert record.fingerprint == scored[0].fingerprint
    assert (await again(samples_per_task=2)).groups[0].mixed == {}
    with pytest.raises(ConfigurationError, match="agent must be"):
        await again(build=other_build)


def asked_twice(prompt: str, *, fails: bool) -> Callable[..., Any]:
    """Return a `build` whose agent is asked twice; `fails`: its code raises between the two."""

    def build(task: Task, model: SGLangModel) -> Any:
        agent = plain(model, system_prompt=prompt)

        async def work() -> Any:
            await agent.invoke_async("go")
            if fails:
                raise RuntimeError("not yet")
            return await agent.invoke_async("go on")

        return work, agent

    return build


@pytest.mark.parametrize("prompt", ["You take steps.", "You take steps. Be brief."])
async def test_corrected_agent_whose_turns_are_kept_is_declared(
    prompt: str, again: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns and tool results of the agent before are a mixture within the episode, unless they were rolled back."""
    failed = await again(build=asked_twice("You take steps.", fails=True), samples_per_task=2)
    assert [(one.end_reason, len(one.tree)) for one in failed] == [(EndReason.AGENT_ERROR, 2)] * 2
    for restored in (False, True, True):
        done = await again(build=asked_twice(prompt, fails=False), samples_per_task=2)
        assert [(one.end_reason, one.restored) for one in done] == [(EndReason.ANSWERED, restored)] * 2
        certificate = verify(tmp_path)
        assert certificate.proved, certificate.text()
        assert done.groups[0].mixed == certificate.mixed
        rows = {row["experiment"] for row in run_rows(tmp_path)}
        main(["show", str(tmp_path)])
        main(["show", str(tmp_path), "a/1", "--ids"])
        shown = capsys.readouterr().out
        if prompt == "You take steps.":
            old, new = failed[0].fingerprint["agent"], done[0].fingerprint["agent"]
            assert certificate.mixed == {"agent": {old: 2, new: 2}}
            assert len(rows) == 1 and "mixed in agent: 2 episodes of 2 experiments" in shown
            assert f"mixed    agent {new}" in shown and f"earlier  agent {old}" in shown
        else:
            assert not certificate.mixed and len(rows) == 1 and "mixed" not in shown
    with pytest.raises(ConfigurationError, match="agent must be"):
        await again(build=asked_twice("You take steps.", fails=True), samples_per_task=3)


async def test_scores_of_another_reward_are_declared(again: Callable[..., Any], tmp_path: Path) -> None:
    await again(samples_per_task=2)
    await score_run(other_reward, tmp_path, episodes=["a/1"])
    certificate = verify(tmp_path)
    assert certificate.proved and sorted(certificate.mixed["reward"].values()) == [1, 1]
    with pytest.raises(ConfigurationError, match="reward must be"):
        await again(samples_per_task=2)
    group = (await again(samples_per_task=2, allow_changed="reward")).groups[0]
    assert group.rewards == [1.0, 0.5] and list(group.mixed) == ["reward"]
    assert len({row["experiment"] for row in run_rows(tmp_path)}) == 2


async def test_origin_of_a_run_is_recorded(
    again: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "python",
        "x.py",
        "--client-options",
        '{"api_key": "s3cret"}',
        "--api-key=s3cret",
        "http://me:s3cret@host/",
        "engine.auth_token=s3cret",
        '{"headers": {"Authorization": "s3cret"}}',
    ]
    monkeypatch.setattr("sys.orig_argv", [*words, "--tokenizer", "T"])
    await again()
    about = Ledger(tmp_path).run
    assert set(about["fingerprint"]) == {"template", "parser", "agent", "reward", "settings", "model", "packages"}
    assert set(about["origin"]) == {"command", "python", "packages", "commit"}
    assert about["origin"]["command"].startswith("python x.py") and about["origin"]["command"].endswith("--tokenizer T")
    assert "s3cret" not in about["origin"]["command"]
    assert about["origin"]["packages"]["strands-agents"] == "1.62.0"


@pytest.mark.parametrize(
    ("about", "name"), [({"served_model_name": "policy"}, "policy"), ({"model_path": "weights/7"}, None), (None, None)]
)
async def test_served_model(about: dict[str, str] | None, name: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """What a server says of its weights changes with every update of them, and names no model."""

    async def reply(wire: Wire) -> None:
        known = {"/health": {}, "/model_info": {"model_path": "weights/7"}, "/server_info": about}
        found = known.get(wire.received.path)
        await wire.reply(b"{}" if found is None else orjson.dumps(found), 404 if found is None else 200)

    with ScriptedServer(reply) as server:
        async with SGLangClient(server.url) as client:
            assert await experiment.served_model(client) == name
    assert ("served model is unknown" in caplog.text) is (name is None)


def test_secrets_of_the_client_and_code_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python", "-u", "-c", "train('s3cret')", "a"])
    monkeypatch.setattr("sys.argv", ["-c", "a"])
    assert experiment.origin(None)["command"] == "python -u -c '***' a"
    monkeypatch.setattr("sys.orig_argv", ["python", "x.py", "-c", "config", "sk-s3cret"])
    monkeypatch.setattr("sys.argv", ["x.py", "-c", "config", "sk-s3cret"])
    client = SGLangClient(api_key="sk-s3cret")
    assert experiment.origin(client)["command"] == "python x.py -c config ***"


async def test_unknown_part() -> None:
    with pytest.raises(ConfigurationError, match=r"RunOptions\.allow_changed must be one of 'agent', 'reward'"):
        await run(build, TASKS, PromptEngine(steps(1)), allow_changed=["temperature"])
