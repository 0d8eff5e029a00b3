"""Rescoring on the real engine: recorded logprobs agree, and those of forged tokens differ."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from strands_sglang.cli.main import main
from strands_sglang.ledger.encoding import episode_of, trajectory_summary
from strands_sglang.ledger.event import EventKind
from strands_sglang.ledger.reader import Ledger, Placed, resolved
from strands_sglang.ledger.run_dir import read_run, shard_paths, write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.shard import ShardReader
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.proof.rescore import NotCompared, RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, rollout
from support.lab_servers import LabProcess
from support.proof.tampering import LedgerEditor
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks

pytestmark = pytest.mark.engine


async def recorded(url: str, directory: Path, episodes: int, **sampling: Any) -> Path:
    await rollout(
        build,
        tasks(episodes // 2, seed=4_000),
        tokenizer=TOKENIZER,
        base_url=url,
        reward=score,
        samples_per_task=2,
        concurrency=16,
        limits=Limits(max_turns=TURNS),
        directory=directory,
        sampling_params={**SAMPLING, **sampling},
    )
    return directory


def forged(directory: Path, target: Path, rng: random.Random) -> tuple[str, int, int]:
    """Write a copy of a run with one sampled token changed and every digest recomputed.

    Returns:
        The episode, the turn and the position of the token.
    """
    raws = [raw for path in shard_paths(directory) for block in ShardReader(path) for raw in block.events]
    editor = LedgerEditor(raws)
    last_calls = {line.event.episode: line.event for line in editor.of(EventKind.CALL)}
    last = rng.choice([event for event in last_calls.values() if len(event.arrays["sampled"]) > 1])
    at = rng.randrange(len(last.arrays["sampled"]) - 1)
    last.arrays["sampled"][at] = (last.arrays["sampled"][at] + rng.randrange(1, 50)) % 300
    end = next(line.event for line in editor.of(EventKind.END) if line.event.episode == last.episode)
    record = resolved(last.episode, [Placed(raw, "", 0) for raw in editor.forged() if episode_of(raw) == last.episode])
    end.data["trajectories"] = [trajectory_summary(trajectory) for trajectory in record.trajectories()]
    about = read_run(directory)
    assert about is not None
    write_run(target, about)
    with LedgerWriter(target) as writer:
        for raw in editor.forged():
            writer.write(raw)
    seal(target)
    return last.episode, last.data["turn"], last.data["prompt_tokens"] + at


async def test_recorded_logprobs_agree(tool_policy: LabProcess, tmp_path: Path) -> None:
    directory = await recorded(tool_policy.url, tmp_path / "run", 24)
    certificate = verify(directory)
    assert certificate.proved, certificate.text()
    assert certificate.episodes.total() == len(Ledger(directory)) == 24
    report = await rescore(directory, tool_policy.url)
    print(certificate.text(), report.text(), sep="\n")
    assert report.verdict is RescoreVerdict.AGREES, report.text()
    assert report.tokens == certificate.tokens.trained and not +report.not_compared
    assert len(report.turns) == certificate.turns and report.largest < 1e-3


async def test_forged_token_differs(tool_policy: LabProcess, tmp_path: Path) -> None:
    """Without a root digest kept elsewhere, nothing offline contradicts the forged token; the engine does."""
    directory = await recorded(tool_policy.url, tmp_path / "run", 8)
    root = verify(directory).root
    for attempt in range(3):
        target = tmp_path / f"forged-{attempt}"
        episode, turn, token = forged(directory, target, random.Random(attempt))
        certificate = verify(target)
        assert certificate.proved and certificate.root != root, certificate.text()
        report = await rescore(target, tool_policy.url)
        assert report.verdict is RescoreVerdict.DIFFERS
        found = [score for score in report.turns if score.beyond]
        # Later tokens of its turn differ too: they were sampled after another token.
        assert [(score.episode, score.turn) for score in found] == [(episode, turn)]
        assert found[0].beyond >= 1 and found[0].token >= token


async def test_temperature(tool_policy: LabProcess, tmp_path: Path) -> None:
    """At 0 the engine reports logprobs of temperature 1; at others those of scaled logits, which likeliest ids give."""
    greedy = await recorded(tool_policy.url, tmp_path / "greedy", 4, temperature=0.0)
    assert (await rescore(greedy, tool_policy.url)).verdict is RescoreVerdict.AGREES
    for temperature in (0.5, 1.5):
        warm = await recorded(tool_policy.url, tmp_path / f"{temperature}", 4, temperature=temperature)
        report = await rescore(warm, tool_policy.url)
        assert report.verdict is RescoreVerdict.AGREES and report.largest < 1e-3, report.text()
        assert not report.not_compared[NotCompared.TEMPERATURE] and report.tokens > 50
        assert (await rescore(warm, tool_policy.url, temperature=1.0)).verdict is RescoreVerdict.DIFFERS


async def test_kept_sets_are_derived_again(tool_policy: LabProcess, tmp_path: Path) -> None:
    """Sets at any temperature follow from one prefill; those of another top_p do not."""
    for number, sampling in enumerate(
        (
            *({"top_p": 0.8}, {"top_p": 0.9, "temperature": 1.5}, {"top_k": 5, "min_p": 0.02}),
            {"top_p": 0.7, "temperature": 0.6},
        )
    ):
        directory = await recorded(tool_policy.url, tmp_path / str(number), 8, **sampling)
        report = await rescore(directory, tool_policy.url)
        assert report.verdict is RescoreVerdict.AGREES and report.sets == report.tokens > 100, report.text()
    about = read_run(tmp_path / "0")
    assert about is not None
    about["settings"]["sampling_params"]["top_p"] = 0.3
    (tmp_path / "0" / "run.json").unlink()
    write_run(tmp_path / "0", about)
    report = await rescore(tmp_path / "0", tool_policy.url)
    assert report.verdict is RescoreVerdict.DIFFERS and sum(score.wrong_sets for score in report.turns) > 0


async def test_command(tool_policy: LabProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = await recorded(tool_policy.url, tmp_path / "run", 4)
    arguments = ["verify", str(directory), "--rescore", tool_policy.url]
    assert await asyncio.to_thread(main, arguments) == 0
    assert "AGREES" in capsys.readouterr().out
    assert await asyncio.to_thread(main, [*arguments, "--tolerance", "1e-12", "--json"]) == 1
