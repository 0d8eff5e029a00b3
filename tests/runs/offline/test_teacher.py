"""A teacher scores recorded runs and episodes: exact logprobs, resumed calls, tampered events, exports."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang import SGLangClient
from strands_sglang.cli.main import main
from strands_sglang.engine.protocol import in_run
from strands_sglang.errors import ConfigurationError, EngineError, LedgerError
from strands_sglang.ledger.event import EventKind, TeacherData, data_of
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.table import to_arrow, trajectories_of, write_parquet
from strands_sglang.proof.finding import FindingKind, Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs import teacher_logprobs
from strands_sglang.runs.resume import restored
from strands_sglang.tokens import Origin, Turn
from strands_sglang.trainers import padded_batch, read_jsonl, write_jsonl
from strands_sglang.trainers.rows import Branches, branches_of, rows
from support.ledger.episodes import Recorder, written_run
from support.proof.in_memory import verify_events
from support.proof.tampering import LedgerEditor
from support.rollout.scripts import raw
from support.toy_engine import VOCABULARY, logprobs_after, toy_engine

EPISODES = 6


class Student(Recorder):
    """Records turns of a student with the logprobs of a toy model."""

    def sample(self, parent: Turn | None, context: list[int], sampled: list[int]) -> Turn:
        whole = ([] if parent is None else self.tree.ids(parent).tolist()) + context + sampled
        first = len(whole) - len(sampled)
        logprobs = [float(logprobs_after(whole[:at], "student")[whole[at]]) for at in range(first, len(whole))]
        return self.call(parent, context=context, sampled=sampled, logprobs=logprobs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    with written_run(directory, samples_per_task=EPISODES + 1) as writer:
        rng = random.Random(0)
        for sample in range(EPISODES):
            recorder = Student(writer.write, sample=sample)
            first = recorder.sample(None, [1, 2, 3], [rng.randrange(VOCABULARY) for _ in range(4)])
            second = recorder.sample(first, [4, 5], [rng.randrange(VOCABULARY) for _ in range(3)])
            recorder.sample(second, [6], [7, 8])
            recorder.sample(first, [9], [10, 11])  # another branch
            recorder.end()
        Student(writer.write, sample=EPISODES).sample(None, [1], [2])  # not finished
    return directory


def exact(ids: list[int], at: int, model: str = "big") -> float:
    return float(logprobs_after(ids[:at], model)[ids[at]])


@pytest.mark.parametrize("top", [0, 5])
async def test_every_sampled_token_is_scored_exactly(folder: Path, top: int) -> None:
    with toy_engine("big", "7") as server:
        report = await teacher_logprobs(folder, server.url, top=top)
    assert (report.episodes, report.known, report.empty, report.failures) == (EPISODES, 0, 1, {})
    assert report.tokens == EPISODES * 11 and report.model == "big" and report.weight_version == "7"
    for record in Ledger(folder).episodes():
        if not record.finished:
            continue
        for flat in record.trajectories():
            assert flat.teacher is not None and flat.teacher.top == top
            flat.validate()
            ids = flat.token_ids.tolist()
            for at, origin in enumerate(flat.origins):
                sampled = origin == Origin.SAMPLED
                assert flat.teacher.logprobs[at] == (exact(ids, at) if sampled else 0.0)
                if top:
                    row = logprobs_after(ids[:at], "big")
                    wanted = np.argsort(-row, kind="stable")[:top].tolist() if sampled else [-1] * top
                    assert flat.teacher.top_id_rows[at].tolist() == wanted
                    assert not sampled or (flat.teacher.top_logprob_rows[at] == row[wanted]).all()
    certificate = verify(folder)
    assert certificate.teacher_tokens == report.tokens and certificate.events["teacher"] == EPISODES
    assert {finding.kind for finding in certificate.findings} == {FindingKind.NO_END}  # of the unfinished episode
    assert "66 sampled tokens scored" in certificate.text()


async def test_the_same_weights_give_the_rollouts_own_logprobs(folder: Path) -> None:
    with toy_engine("student") as server:
        report = await teacher_logprobs(folder, server.url)
    assert abs(report.mean_difference) < 1e-12
    for branch in branches_of(folder):
        flat = branch.trajectory
        assert flat.teacher is not None
        assert np.abs(np.asarray(flat.teacher.logprobs) - flat.logprobs).max() == 0.0


async def test_an_interrupted_call_continues(folder: Path) -> None:
    with toy_engine("big", delay=0.05) as server:
        scoring = asyncio.ensure_future(teacher_logprobs(folder, server.url, at_once=1))
        while not any(record.teacher for record in Ledger(folder).episodes()):
            await asyncio.sleep(0.02)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        done = sum(record.teacher is not None for record in Ledger(folder).episodes())
        assert 0 < done < EPISODES
        report = await teacher_logprobs(folder, server.url)
        assert (report.known, report.episodes) == (done, EPISODES - done)
        assert (await teacher_logprobs(folder, server.url)).known == EPISODES
        assert (await teacher_logprobs(folder, server.url, again=True)).episodes == EPISODES
        assert (await teacher_logprobs(folder, server.url, top=3)).episodes == EPISODES  # more than what is known
        assert (await teacher_logprobs(folder, server.url, top=2)).known == EPISODES
    with toy_engine("bigger") as server:
        assert (await teacher_logprobs(folder, server.url)).episodes == EPISODES
    kinds = {finding.kind for finding in verify(folder).findings}
    assert kinds == {FindingKind.NO_END}, verify(folder).text()
    newest = Ledger(folder).episode("add/0").teacher
    assert newest is not None and data_of(newest, TeacherData)["model"] == "bigger"


async def test_some_episodes_and_those_that_fail(folder: Path) -> None:
    with toy_engine("big", refuse=11) as server:  # every second branch has token 11
        report = await teacher_logprobs(folder, server.url, episodes=["add/1", "add/2"])
    assert set(report.failures) == {"add/1", "add/2"} and "400" in report.failures["add/1"]
    assert "FAILED      episode add/1" in report.text() and report.to_dict()["failures"]
    assert all(record.teacher is None for record in Ledger(folder).episodes())
    with toy_engine("big") as server:
        with pytest.raises(LedgerError, match="no episode 'add/77'"):
            await teacher_logprobs(folder, server.url, episodes=["add/77"])
        with pytest.raises(ConfigurationError, match=f"at most the {VOCABULARY} ids"):
            await teacher_logprobs(folder, server.url, top=VOCABULARY + 1)
        with pytest.raises(ConfigurationError):
            await teacher_logprobs(folder, server.url, at_once=0)
        assert (await teacher_logprobs(folder, server.url, episodes=["add/1"], top=VOCABULARY)).episodes == 1
    with pytest.raises(EngineError):
        await teacher_logprobs(folder, "http://127.0.0.1:9")


async def test_episodes_in_memory(folder: Path) -> None:
    episodes = [restored(record) for record in Ledger(folder).episodes() if record.finished]
    seen: list[int] = []
    with toy_engine("big") as server:
        async with SGLangClient(server.url) as teacher:
            await teacher_logprobs(episodes[0], teacher)
            report = await teacher_logprobs(
                episodes, teacher, top=2, progress=lambda report: seen.append(report.episodes)
            )
    assert report.episodes == EPISODES and seen == list(range(1, EPISODES + 1))
    for episode in episodes:
        row = rows(episode, Branches.ALL)[0]  # no branch is certain to be the main one
        assert row.teacher is not None and len(row.teacher) == len(row.response_ids) and row.teacher.top == 2
    assert all(record.teacher is None for record in Ledger(folder).episodes())  # nothing is written


async def test_a_teacher_is_waited_for_like_the_engine_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's call gives up within a minute, a batch does not."""
    seen, score = set[bool](), SGLangClient.score

    async def noted(self: SGLangClient, *args: Any, **options: Any) -> Any:
        seen.add(in_run.get())
        return await score(self, *args, **options)

    monkeypatch.setattr(SGLangClient, "score", noted)
    with toy_engine("big", "7") as server:
        await teacher_logprobs(folder, server.url)
    assert seen == {True} and not in_run.get()


async def test_exports_have_the_scores(folder: Path, tmp_path: Path) -> None:
    with toy_engine("big") as server:
        await teacher_logprobs(folder, server.url, top=3)
    branches = list(branches_of(folder))
    write_jsonl(folder, tmp_path / "rows.jsonl")
    again = list(read_jsonl(tmp_path / "rows.jsonl"))
    assert [one.trajectory for one in again] == [one.trajectory for one in branches]
    assert again[0].trajectory.teacher == branches[0].trajectory.teacher is not None
    write_parquet(folder, tmp_path / "rows.parquet")
    assert [one.teacher for one in trajectories_of(tmp_path / "rows.parquet")] == [
        one.trajectory.teacher for one in branches
    ]
    assert to_arrow(folder).column("teacher")[0].as_py()["top"] == 3
    assert verify(folder, exported=tmp_path / "rows.jsonl").exported is not None
    for side in ("left", "right"):
        batch = padded_batch(folder, pad_token_id=0, side=side, train_unscored=True)
        assert batch["teacher_logprobs"].shape == batch["input_ids"].shape
        assert batch["teacher_top_ids"].shape == batch["teacher_top_logprobs"].shape == (*batch["input_ids"].shape, 3)
        scored = batch["teacher_top_ids"][..., 0] >= 0
        assert (batch["teacher_logprobs"][~scored] == 0.0).all() and scored.sum() >= batch["loss_mask"].sum()
        sampled = batch["versions"] >= 0
        assert (scored == sampled).all()
    branches[0].trajectory.teacher = None
    assert "teacher_logprobs" not in padded_batch(branches, pad_token_id=0, train_unscored=True)


def tampered(editor: LedgerEditor, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Verdict:
    """Return the verdict on an episode with its last event changed and all digests computed again."""
    changed = editor.copy()
    last = changed.events[-1].event
    change(last.data, last.arrays)
    return verify_events(changed.forged()).verdict


async def test_a_thousand_tamperings_are_noticed(folder: Path) -> None:
    with toy_engine("big") as server:
        await teacher_logprobs(folder, server.url, top=4)
    record = Ledger(folder).episode("add/0")
    assert record.events[-1].kind is EventKind.TEACHER
    rng, editor = random.Random(1), LedgerEditor(raw(record.events))

    def token(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays["logprobs"][rng.randrange(len(arrays["logprobs"]))] += rng.choice([-1, 1]) * rng.uniform(0.01, 2.0)

    def likeliest(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        rows = np.asarray(arrays["top_logprobs"]).reshape(-1, 4)
        at = rng.randrange(len(rows))
        rows[at] = rows[at][::-1].copy() if rng.random() < 0.5 else rows[at] + 3.0

    def foreign(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        at = rng.randrange(0, len(arrays["top_ids"]), 4)
        arrays["top_ids"][at] = rng.choice([-1, arrays["top_ids"][at + 1]])

    def lost(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        if rng.random() < 0.5:
            arrays["logprobs"].pop()
        else:
            data["turns"][0][1] -= 1

    def moved(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        data["turns"][0], data["turns"][1] = data["turns"][1], data["turns"][0]

    def branch(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        one = data["branches"][0]
        one[rng.randrange(2)] += 1

    def form(data: dict[str, Any], arrays: dict[str, Any]) -> None:
        name = rng.choice(["model", "top", "turns", "branches", "temperature"])
        data[name] = rng.choice([None, "x", -1, [[0]], [["a", 1]]]) if name != "model" else None

    changes = [likeliest, foreign, lost, moved, branch, form]
    unnoticed = [one.__name__ for one in changes * 167 if tampered(editor, one) is not Verdict.BROKEN]
    assert not unnoticed, unnoticed
    # The logprob of a token alone is only bounded by the likeliest ids: what stays within is noticed by scoring again.
    bounded = sum(tampered(editor, token) is Verdict.BROKEN for _ in range(100))
    assert 0 < bounded < 100


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with toy_engine("big") as server:
        assert main(["teacher", str(folder), server.url, "--top", "2"]) == 0
        out = capsys.readouterr().out
        assert "6 episodes scored by big" in out and "per 1,000 tokens sent" in out
        assert main(["teacher", str(folder), server.url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["known"] == EPISODES
    assert main(["show", str(folder), "add/0"]) == 0
    assert "teacher  big scored 11 sampled tokens" in capsys.readouterr().out
    with toy_engine("other", refuse=11) as server:
        assert main(["teacher", str(folder), server.url]) == 1
    assert main(["teacher", str(folder / "nothing"), "http://127.0.0.1:9"]) == 2
    assert main(["teacher", str(folder), "http://127.0.0.1:9"]) != 0
