"""Runs with top-p sampling: kept sets are requested when they matter, recorded, proved, resumed, replayed, exported."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.event import EventKind
from strands_sglang.proof.finding import Verdict
from strands_sglang.runs import Limits, ReplayVerdict, Task, replay
from strands_sglang.trainers.exports import read_jsonl, write_jsonl
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm
from strands_sglang.trainers.slime.samples import RemovalReason, samples_of
from support.proof.in_memory import verify_events
from support.proof.tampering import LedgerEditor
from support.rollout.agent_kinds import build
from support.rollout.scripts import (
    PromptEngine,
    assert_proved,
    assert_same,
    crashed,
    raw,
    record_of,
    run,
    steps,
    summaries,
)
from support.trainers.slime_mirror import Sample

TASK = Task("go", id="t")
TOP_P: dict[str, Any] = {"sampling_params": {"top_p": 0.8}}


@pytest.mark.parametrize(
    ("sampling", "wanted", "top_k"),
    [
        ({"top_p": 0.8}, True, 4096), ({"top_k": 20}, True, 20), ({"min_p": 0.1, "top_k": -1}, True, 4096),
        ({"top_p": 0.9, "top_k": 100_000}, True, 4096), ({}, False, None),
        ({"top_p": 1.0, "top_k": -1, "min_p": 0.0}, False, -1), ({"top_p": 0.8, "temperature": 0}, False, None),
    ],
)  # fmt: skip
async def test_sets_are_requested_when_they_matter(sampling: dict[str, Any], wanted: bool, top_k: int | None) -> None:
    engine = PromptEngine(steps(1))
    await run(build, [TASK], engine, None, sampling_params=sampling)
    assert all(call.asked.get("kept_sets", False) is wanted for call in engine.calls)
    assert {call.sampling.get("top_k") for call in engine.calls} == {top_k}


async def test_the_choice_is_the_users() -> None:
    engine = PromptEngine(steps(1))
    await run(build, [TASK], engine, None, kept_sets=False, **TOP_P)
    assert not any("kept_sets" in call.asked for call in engine.calls)
    with pytest.raises(ConfigurationError, match="kept_sets must be True, False or 'auto'"):
        await run(build, [TASK], engine, None, kept_sets="always")


async def test_run_is_recorded_proved_resumed_and_replayed(tmp_path: Path) -> None:
    whole = await run(build, [TASK], PromptEngine(steps(3)), tmp_path / "run", **TOP_P)
    assert_proved(tmp_path / "run")
    assert_same(tmp_path / "run", whole)
    (trajectory,) = whole[0].trajectories
    assert trajectory.kept is not None
    (again,) = await replay(build, tmp_path / "run", tokenizer=PromptEngine(steps(1)).tokenizer, **TOP_P)
    assert again.verdict is ReplayVerdict.IDENTICAL
    assert list(again.trajectories) == [trajectory]
    for kept in range(1, len(record_of(tmp_path / "run", "t/0").events)):
        folder = crashed(tmp_path / "run", tmp_path / f"crash{kept}", {"t/0": kept})
        engine = PromptEngine(steps(3)).follows(record_of(folder, "t/0").events)
        assert summaries(await run(build, [TASK], engine, folder, **TOP_P)) == summaries(whole)
        assert_proved(folder)


async def test_a_thousand_tamperings_are_noticed(tmp_path: Path) -> None:
    """Every digest is made anew after each: only what the sets themselves say can give it away."""
    await run(build, [TASK], PromptEngine(steps(3)), tmp_path / "run", **TOP_P)
    original = LedgerEditor(raw(record_of(tmp_path / "run", "t/0").events))
    rng, caught = random.Random(7), 0
    for _ in range(1000):
        editor = original.copy()
        arrays = rng.choice(editor.of(EventKind.CALL)).event.arrays
        offsets, ids, logprobs = arrays["kept_offsets"], arrays["kept"], arrays["kept_logprobs"]
        at = rng.randrange(len(logprobs))
        start, end = offsets[at], offsets[at + 1]
        own = arrays["sampled"][at]
        way = rng.choice(["drop the token", "replace it", "twice", "lose a set", "shift", "logprob", "lose all"])
        if way == "drop the token":
            ids.pop(start + list(ids[start:end]).index(own))
            for later in range(at + 1, len(offsets)):
                offsets[later] -= 1
        elif way == "replace it":
            ids[start + list(ids[start:end]).index(own)] = own + 7
        elif way == "twice":
            ids.insert(start, own)
            for later in range(at + 1, len(offsets)):
                offsets[later] += 1
        elif way == "lose a set":
            del offsets[at]
        elif way == "shift":
            if offsets[at + 1] == offsets[-1] or at + 1 >= len(offsets) - 1:
                continue
            offsets[at + 1] = offsets[at]
        elif way == "logprob":
            logprobs[at] = arrays["logprobs"][at] - 0.5  # less likely among fewer tokens
        else:
            del arrays["kept_offsets"]
        certificate = verify_events(editor.rewritten())
        assert certificate.verdict is Verdict.BROKEN, (way, at)
        caught += 1
    assert caught > 900


async def test_exports_and_slime(tmp_path: Path) -> None:
    engine = PromptEngine(steps(2))
    (episode,) = await run(
        build, [TASK], engine, tmp_path / "run", reward=lambda episode: 1.0, limits=Limits(max_turns=5), **TOP_P
    )
    write_jsonl(tmp_path / "run", tmp_path / "rows.jsonl")
    (branch,) = read_jsonl(tmp_path / "rows.jsonl")
    assert branch.trajectory == episode.trajectories[0]
    (sample,) = samples_of(Sample(), episode, decode=str, kept_sets=KeptSetsForm.SLIME)
    assert not sample.remove_sample
    kept = branch.row.kept if branch.row is not None else None
    assert kept is not None
    assert sample.rollout_top_p_token_ids.tolist() == kept.token_ids.tolist()
    assert sample.rollout_top_p_token_offsets.tolist() == kept.offsets.tolist()
    assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
    assert sample.rollout_log_probs == kept.logprobs.tolist()
    (other,) = await run(build, [TASK], PromptEngine(steps(2)), None, reward=lambda episode: 1.0)
    (without,) = samples_of(Sample(), other, decode=str, kept_sets=KeptSetsForm.SLIME)
    assert without.remove_sample
    assert without.metadata["strands_sglang"]["removed"] == RemovalReason.NO_KEPT_SETS.value


@pytest.mark.parametrize(("sampling", "recorded"), [({}, 1.0), ({"temperature": 1.5}, 1.5)])
async def test_temperature_is_recorded_with_sets(tmp_path: Path, sampling: dict[str, Any], recorded: float) -> None:
    """Whether the two logprobs of a token can be compared depends on it."""
    await run(build, [TASK], PromptEngine(steps(1)), tmp_path / "run", sampling_params={"top_p": 0.8, **sampling})
    assert {call.data["detail"]["temperature"] for call in record_of(tmp_path / "run", "t/0").calls} == {recorded}
    await run(build, [TASK], PromptEngine(steps(1)), tmp_path / "other", sampling_params=sampling)
    assert not any("temperature" in call.data["detail"] for call in record_of(tmp_path / "other", "t/0").calls)
