"""Seeds on a real engine with deterministic inference: a run can be repeated, and its groups have no copies.

The lab's model is small and computed in float32. What batch invariance does on a GPU is not shown here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from strands_sglang import SGLangClient
from strands_sglang.cli.main import main
from strands_sglang.errors import ConfigurationError
from strands_sglang.ledger.reader import Ledger
from strands_sglang.proof.verify import verify
from strands_sglang.runs import Limits, RunOptions, RunResult, rollout
from support.examples import size
from support.lab_servers import LabProcess
from support.rollout_agent import SAMPLING, TOKENIZER, TURNS, build, score, tasks

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

TASKS, SAMPLES = size(16, 64), 4
AGENT = """import os
from support.rollout_agent import WAYS, build, score

WAYS.die_in = os.environ.get("DIE_IN", "")
"""
"""The agent of the command line. With `DIE_IN`, its process kills itself in that call of the calculator."""


async def seeded(
    server: LabProcess, seed: int | None = 7, *, backwards: bool = False, preflight: bool = False, **settings: Any
) -> RunResult:
    given = tasks(settings.pop("count", TASKS))[:: -1 if backwards else 1]
    defaults: dict[str, Any] = {"samples_per_task": SAMPLES, "concurrency": 64, "sampling_params": SAMPLING}
    defaults |= {"limits": Limits(max_turns=TURNS)}
    return await rollout(
        build,
        given,
        base_url=server.url,
        tokenizer=TOKENIZER,
        reward=score,
        seed=seed,
        options=RunOptions(preflight=preflight),
        **{**defaults, **settings},
    )


def tokens(run: RunResult) -> dict[str, list[list[int]]]:
    """Return the sampled ids of every turn of every episode."""
    return {episode.id: [turn.sampled.tolist() for turn in episode.tree] for episode in run}


async def test_run_with_a_seed_is_repeated_token_for_token(deterministic: LabProcess, tmp_path: Path) -> None:
    first = await seeded(deterministic, directory=tmp_path / "first")
    wanted = tokens(first)
    assert len(wanted) == TASKS * SAMPLES
    for group in first.groups:
        # The first turns of a group are sampled from one prompt: with one seed for all they would be the same.
        assert len({tuple(map(tuple, wanted[episode.id])) for episode in group.episodes}) > 1, group.task.id
    again = await seeded(deterministic, directory=tmp_path / "again")
    assert tokens(again) == wanted
    # Another order of tasks, and another number of episodes at once.
    assert tokens(await seeded(deterministic, backwards=True, concurrency=5)) == wanted
    assert tokens(await seeded(deterministic, seed=8)) != wanted


async def test_no_two_long_answers_are_equal(deterministic: LabProcess) -> None:
    """An answer of this policy is a sentence that it knows; only behind its end do the samples of a group part."""
    sampling = {**SAMPLING, "ignore_eos": True}
    limits = Limits(max_turns=1)
    run = await seeded(deterministic, count=4, samples_per_task=8, sampling_params=sampling, limits=limits)
    for group in run.groups:
        answers = [tuple(episode.tree[0].sampled) for episode in group.episodes]
        assert {len(one) for one in answers} == {64} and len(set(answers)) == 8, group.task.id


def recorded(directory: Path) -> dict[str, list[list[int]]]:
    """As `tokens`, of a run on disk, which must be proved."""
    certificate = verify(directory)
    assert certificate.proved, certificate.text()
    return {one.id: [turn.sampled.tolist() for turn in one.tree()] for one in Ledger(directory).episodes()}


def test_eval_with_a_seed_gives_the_same_again_and_after_a_kill(
    deterministic: LabProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command line; the run that was killed and goes on has the tokens of the others."""
    monkeypatch.chdir(tmp_path)
    Path("seeded_agent.py").write_text(AGENT)
    lines = [{"prompt": one.prompt, "answer": one.answer, "data": one.data, "id": one.id} for one in tasks(TASKS // 2)]
    Path("tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["eval", "tasks.jsonl", "--agent", "seeded_agent:build", "--reward", "seeded_agent:score", "--seed", "7"]
    command += ["--base-url", deterministic.url, "--tokenizer", TOKENIZER, "-n", "2", "--max-turns", str(TURNS)]
    command += ["--max-new-tokens", "64", "--temperature", "1.0", "--progress", "none", "--json"]
    said = []
    for directory in ("one", "other"):
        assert main([*command, "-d", directory]) == 0
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1] and said[0]["episodes"] == 2 * (TASKS // 2)
    wanted = recorded(Path("one"))
    assert recorded(Path("other")) == wanted and len(wanted) == 2 * (TASKS // 2)

    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "DIE_IN": str(4 * TURNS)}
    arguments = ["-m", "strands_sglang.cli", *command, "--concurrency", "2", "-d", "killed"]
    killed = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    ended = [record.end is not None for record in Ledger("killed").episodes()]
    assert any(ended) and not all(ended), "killed when some had ended, and others were under way"
    assert main([*command, "-d", "killed"]) == 0
    assert json.loads(capsys.readouterr().out) == said[0]
    assert recorded(Path("killed")) == wanted


async def test_engine_without_seeds_is_refused_because_groups_would_be_copies(deterministic: LabProcess) -> None:
    with pytest.raises(ConfigurationError, match="would be copies of each other; pass seed="):
        await seeded(deterministic, seed=None, preflight=True)
    with pytest.raises(ConfigurationError, match="min_p must not be used"):  # refused before it can end the server
        await seeded(deterministic, sampling_params={**SAMPLING, "min_p": 0.1}, preflight=True)
    copies = await seeded(deterministic, seed=None, count=2)  # as the message says
    for group in copies.groups:
        assert len({str(tokens(copies)[episode.id]) for episode in group.episodes}) == 1


async def test_continued_turn_has_the_tokens_of_a_whole_one(deterministic: LabProcess) -> None:
    async with SGLangClient(deterministic.url) as client:
        prompt, sampling = array("i", range(100, 140)), {"temperature": 1.5, "ignore_eos": True, "sampling_seed": -5}
        whole = await client.generate(prompt, {**sampling, "max_new_tokens": 24})
        rest = await client.generate(prompt + whole.token_ids[:10], {**sampling, "max_new_tokens": 14})
    assert rest.token_ids == whole.token_ids[10:]
