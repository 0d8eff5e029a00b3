"""Rescoring at temperatures and with kept sets, on an engine whose distribution is known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang.ledger.run_dir import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.rescore import NotCompared, RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.tokens import KeptSets, Turn
from support.ledger.episodes import RUN, Recorder
from support.toy_engine import VOCABULARY, logprobs_after, toy_engine


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
    write_run(folder, {"run": RUN, "settings": {"sampling_params": sampling}})
    writer = LedgerWriter(folder)
    recorder = Policy(writer.write)
    first = recorder.sample(None, [1, 2, 3], 12, sampling, sets)
    recorder.sample(first, [4, 5], 9, sampling, sets)
    recorder.end()
    writer.close()
    seal(folder)


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
    module = __import__("importlib").import_module("strands_sglang.proof.rescore")
    monkeypatch.setattr(module, "_TOP", 4)
    record(tmp_path, {"temperature": 1.5}, sets=False)
    with toy_engine() as server:
        report = await rescore(tmp_path, server.url)
    assert report.verdict is RescoreVerdict.NOTHING, report.text()
    assert report.not_compared[NotCompared.TEMPERATURE] == 21
    assert "21 temperature" in report.text()
