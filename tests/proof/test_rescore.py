"""Recorded logprobs are compared with an engine's; tokens that cannot be compared are counted."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.errors import EngineError
from strands_sglang.ledger.run_dir import write_run
from strands_sglang.proof.rescore import NotCompared, RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import KeptSets, Turn, TurnPurpose
from support.ledger.episodes import RUN, Recorder, written_run
from support.scripted import Received, ScriptedServer, Wire
from support.toy_engine import VOCABULARY, logprobs_after, toy_engine

rescore_module = importlib.import_module(
    "strands_sglang.proof.rescore"
)  # `strands_sglang.proof.rescore` is the function


def likely(ids: Sequence[int], at: int) -> float:
    """Return the logprob that the scripted engine assigns to the token at a position."""
    return -((sum(ids[: at + 1]) * 31 + at) % 97) / 13


def engine(refuse: int = -1, last_logprob: Any = None) -> ScriptedServer:
    """Return an engine with weight version "v2" that refuses prompts that contain one token.

    Args:
        refuse: The token.
        last_logprob: Logprob of the last token of a prompt, as JSON; None: the correct one.
    """

    def read(received: Received) -> bytes:
        body = received.json()
        ids, start = body["input_ids"], body["logprob_start_len"]
        assert body["sampling_params"]["temperature"] == 1.0
        entries = [[None if at == 0 else likely(ids, at), ids[at], None] for at in range(start, len(ids))]
        entries[0][0] = None
        if last_logprob is not None:
            entries[-1][0] = "LAST"
        answer = orjson.dumps({"meta_info": {"input_token_logprobs": entries}})
        return answer.replace(b'"LAST"', last_logprob or b"")

    async def handle(wire: Wire) -> None:
        received = await wire.read_body()
        if received.path == "/model_info":
            await wire.reply(b'{"model_path": "small", "weight_version": "v2"}')
        elif received.path != "/generate":
            await wire.reply(b"{}", 404)
        elif "logit_bias" in received.json()["sampling_params"]:
            await wire.reply(b"logit_bias must has keys in [0, 99], got 1073741823", 400)
        elif refuse in received.json()["input_ids"]:
            await wire.reply(b"too long", 400)
        else:
            await wire.reply(read(received))

    return ScriptedServer(handle)


class Scored(Recorder):
    """Records turns with the logprobs of the scripted engine."""

    def sample(self, parent: Turn | None, context: list[int], sampled: list[int], **more: Any) -> Turn:
        before = [] if parent is None else self.tree.ids(parent).tolist()
        whole = before + context + sampled
        logprobs = [likely(whole, at) for at in range(len(whole) - len(sampled), len(whole))]
        more.setdefault("versions", [("v2", 0, len(sampled))])
        return self.call(parent, context=context, sampled=sampled, logprobs=logprobs, **more)


def two_tokens(folder: Path, **about: Any) -> Path:
    """Record a run of one turn of two tokens."""
    with written_run(folder, sealed=False, **about) as writer:
        recorder = Scored(writer.write)
        recorder.sample(None, [1, 2], [3, 4])
        recorder.end()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with written_run(tmp_path, samples_per_task=3, settings={"sampling_params": {"max_new_tokens": 9}}) as writer:
        for sample in range(3):
            recorder = Scored(writer.write, sample=sample)
            first = recorder.sample(None, [1, 2, 3], [10 + sample, 11, 12])
            second = recorder.sample(first, [4], [13, 14, 15, 16], versions=[("v1", 0, 1), ("v2", 1, 4)])
            recorder.sample(second, [5], [17, 18], purpose=TurnPurpose.CONSTRAINED)
            recorder.sample(second, [6], [19])
            recorder.sample(first, [7], [20, 21])  # another branch: the first turn is not compared again
            recorder.end()
    return tmp_path


async def test_all_comparable_tokens_are_compared(folder: Path) -> None:
    with engine() as server:
        report = await rescore(folder, server.url)
    assert report.verdict is RescoreVerdict.AGREES and report.largest == 0.0, report.text()
    assert (report.model, report.weight_version, report.episodes) == ("small", "v2", 3)
    assert report.tokens == 3 * (3 + 3 + 1 + 2)
    assert report.not_compared[NotCompared.OTHER_VERSION] == 3
    assert [(score.episode, score.turn, score.tokens) for score in report.turns[:4]] == [
        *(("add/0", 0, 3), ("add/0", 1, 3), ("add/0", 3, 1), ("add/0", 4, 2)),
    ]
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "agrees"


async def test_other_versions_are_compared_on_request(folder: Path) -> None:
    with engine() as server:
        report = await rescore(folder, server.url, all_versions=True, episodes=["add/1"])
    assert report.tokens == 3 + 4 + 1 + 2 and not report.not_compared[NotCompared.OTHER_VERSION]


async def test_constrained_tokens_are_not_compared(tmp_path: Path) -> None:
    with written_run(tmp_path, sealed=False) as writer:
        recorder = Scored(writer.write)
        middle = recorder.sample(None, [1], [2, 3], purpose=TurnPurpose.CONSTRAINED)
        recorder.sample(middle, [4], [5])
        recorder.end()
    with engine() as server:
        report = await rescore(tmp_path, server.url)
    assert (report.tokens, report.not_compared[NotCompared.CONSTRAINED]) == (1, 2)


async def test_changed_token_differs(tmp_path: Path) -> None:
    """Recomputing every digest does not help, because the recorded logprob does not match the token."""
    with written_run(tmp_path, sealed=False) as writer:
        recorder = Scored(writer.write)
        first = recorder.sample(None, [1, 2], [3, 4])
        whole = [1, 2, 3, 4, 5, 6, 8]
        forged = [likely(whole, 5), likely([*whole[:-1], 7], 6)]  # 7 became 8, with the logprob of 7
        recorder.call(first, context=[5], sampled=[6, 8], logprobs=forged, versions=[("v2", 0, 2)])
        recorder.end()
    with engine() as server:
        report = await rescore(tmp_path, server.url)
        loose = await rescore(tmp_path, server.url, tolerance=100.0)
    assert report.verdict is RescoreVerdict.DIFFERS and loose.verdict is RescoreVerdict.AGREES
    worst = max(report.turns, key=lambda score: score.largest)
    assert (worst.turn, worst.tokens, worst.beyond, worst.token) == (1, 2, 1, 6)
    assert "episode add/0, turn 1: 1 of 2 tokens differ" in report.text()


@pytest.mark.parametrize("settings", [1, 0.0, None])
async def test_logprobs_at_temperature_one_are_compared(tmp_path: Path, settings: float | None) -> None:
    two_tokens(tmp_path, settings={"sampling_params": {"temperature": settings}})
    with engine() as server:
        report = await rescore(tmp_path, server.url)
        refused = await rescore(tmp_path, server.url, temperature=0.5)  # this engine has no likeliest ids
    assert report.verdict is RescoreVerdict.AGREES and not report.not_compared[NotCompared.TEMPERATURE]
    assert refused.verdict is RescoreVerdict.NOTHING and refused.not_compared[NotCompared.REFUSED] == 2


async def test_refused_request_is_not_agreement(folder: Path) -> None:
    with engine(refuse=12) as server:
        report = await rescore(folder, server.url)
    assert report.verdict is RescoreVerdict.NOTHING and report.not_compared[NotCompared.REFUSED] == 27
    assert "400" in report.failures[0] and "add/" in report.failures[0]


@pytest.mark.parametrize(
    "last_logprob", [b"null", b"true", b'"-0.5"', b"[]", b"NaN", b"-1e999", b"0.5", b"9223372036854775808"]
)
async def test_invalid_logprob_from_the_engine_is_not_agreement(folder: Path, last_logprob: bytes) -> None:
    with engine(last_logprob=last_logprob) as server:
        report = await rescore(folder, server.url, tolerance=100.0)
    assert report.verdict is RescoreVerdict.NOTHING
    assert report.not_compared[NotCompared.REFUSED] and report.failures


async def test_nan_tolerance_accepts_nothing(folder: Path) -> None:
    with engine() as server:
        report = await rescore(folder, server.url, tolerance=float("nan"))
    assert report.verdict is RescoreVerdict.DIFFERS


async def test_recorded_nan_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_tokens(tmp_path)
    run, found = rescore_module.prove_run(tmp_path, None)
    (proof,) = found
    proof.trajectories[0].logprobs[-1] = float("nan")
    monkeypatch.setattr(rescore_module, "prove_run", lambda *_: (run, [proof]))
    with engine() as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.DIFFERS and [score.beyond for score in report.turns] == [1]


async def test_no_engine(folder: Path) -> None:
    with pytest.raises(EngineError):
        await rescore(folder, "http://127.0.0.1:9")


class Policy(Recorder):
    """Records turns sampled from the toy engine's distribution."""

    def sample(self, parent: Turn | None, context: list[int], count: int, sampling: dict[str, Any], sets: bool) -> Turn:
        rng = np.random.default_rng(len(self.tree) + count)
        ids = ([] if parent is None else self.tree.ids(parent).tolist()) + context
        sampled: list[int] = []
        logprobs: list[float] = []
        kept: list[list[int]] = []
        inside: list[float] = []
        for _ in range(count):
            row = logprobs_after(ids + sampled, temperature=sampling["temperature"])
            order = np.argsort(-row, kind="stable")
            mass = np.cumsum(np.exp(row[order]))
            order = order[(mass - np.exp(row[order])) <= sampling.get("top_p", 1.0)]
            order = order[: sampling.get("top_k", VOCABULARY)]
            share = np.exp(row[order]) / np.exp(row[order]).sum()
            number = int(rng.choice(len(order), p=share))
            sampled.append(int(order[number]))
            logprobs.append(float(row[order[number]]))
            kept.append(order.tolist())
            inside.append(float(np.log(share[number])))
        found = KeptSets.of(kept, inside) if sets else None
        return self.call(
            parent, context=context, sampled=sampled, logprobs=logprobs, versions=[("v1", 0, count)], kept=found
        )


def record(folder: Path, sampling: dict[str, Any], *, sets: bool, change: Any = None) -> None:
    with written_run(folder, settings={"sampling_params": sampling}) as writer:
        recorder = Policy(writer.write)
        first = recorder.sample(None, [1, 2, 3], 12, sampling, sets)
        recorder.sample(first, [4, 5], 9, sampling, sets)
        recorder.end()


SETS = [
    {"temperature": 1.0, "top_p": 0.8, "top_k": 40},
    {"temperature": 0.6, "top_p": 0.95, "top_k": 40},
    {"temperature": 1.5, "top_p": 0.7, "top_k": 8},
    {"temperature": 1.0, "top_k": 5},
]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("sampling", SETS)
async def test_kept_sets_are_derived_again(tmp_path: Path, sampling: dict[str, Any], flat: bool) -> None:
    record(tmp_path, sampling, sets=True)
    assert verify(tmp_path).proved
    with toy_engine(flat=flat) as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.AGREES, report.text()
    assert report.sets == report.tokens == 21 and report.temperature == sampling["temperature"]
    assert "21 derived again, 0 differ" in report.text() and report.to_dict()["sets"] == 21


@pytest.mark.parametrize("sampling", SETS)
async def test_sets_of_another_model_differ(tmp_path: Path, sampling: dict[str, Any]) -> None:
    record(tmp_path, sampling, sets=True)
    with toy_engine("other", "v1") as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.DIFFERS
    assert sum(score.wrong_sets for score in report.turns) > 15, report.text()


async def test_a_wrong_top_p_is_noticed(tmp_path: Path) -> None:
    record(tmp_path, {"temperature": 1.0, "top_p": 0.8}, sets=True)
    (tmp_path / "run.json").unlink()
    write_run(tmp_path, {"run": RUN, "settings": {"sampling_params": {"temperature": 1.0, "top_p": 0.5}}})
    with toy_engine() as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.DIFFERS and report.largest < 1e-5  # the logprobs agree, the sets do not


async def test_sets_of_a_run_whose_sampling_is_unknown(tmp_path: Path) -> None:
    """A trainer sets the sampling parameters: then a set must have the likeliest ids, however many."""
    record(tmp_path, {"temperature": 1.0, "top_p": 0.8}, sets=True)
    (tmp_path / "run.json").unlink()
    write_run(tmp_path, {"run": RUN, "settings": {}})
    with toy_engine() as server:
        assert (await rescore(tmp_path, server.url)).verdict is RescoreVerdict.AGREES
    with toy_engine("other", "v1") as server:
        assert (await rescore(tmp_path, server.url)).verdict is RescoreVerdict.DIFFERS


@pytest.mark.parametrize("temperature", [0.4, 0.7, 1.3, 2.0])
async def test_a_temperature_is_checked_with_the_likeliest_ids(tmp_path: Path, temperature: float) -> None:
    record(tmp_path, {"temperature": temperature}, sets=False)
    with toy_engine() as server:
        report = await rescore(tmp_path, server.url)  # the whole vocabulary: exact
        wrong = await rescore(tmp_path, server.url, temperature=temperature + 0.1)
    assert report.verdict is RescoreVerdict.AGREES and report.tokens == 21, report.text()
    assert report.largest < 1e-4 and not report.not_compared[NotCompared.TEMPERATURE]
    assert wrong.verdict is RescoreVerdict.DIFFERS


async def test_bounds_that_are_too_wide_are_not_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore_module, "_TOP", 4)
    record(tmp_path, {"temperature": 1.5}, sets=False)
    with toy_engine() as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.NOTHING, report.text()
    assert report.not_compared[NotCompared.TEMPERATURE] == 21
    assert "21 temperature" in report.text()
