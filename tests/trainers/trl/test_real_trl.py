"""TRL on the real engine: GRPO with an agent, in the trainer's own environment.

Ten steps of the example; then what is on record is held against what TRL logged.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strands_sglang import SGLangClient
from strands_sglang.ledger.reader import Ledger
from strands_sglang.ledger.trainer_values import TRAINER_FILE, TrainerFile
from strands_sglang.proof.rescore import RescoreVerdict, rescore
from strands_sglang.proof.verify import verify
from support.examples import size
from support.lab_servers import LAB, LabProcess
from support.trainers.notebook import run_notebook
from support.trainers.trl_pages import check_pages
from support.user_simulation import ROUNDS

pytestmark = [pytest.mark.engine, pytest.mark.own_servers]

ROOT = LAB.parent
EXAMPLE = ROOT / "examples" / "trl_calculator" / "train.py"
EXTENDED = ROOT / "tests" / "support" / "trainers" / "trl_training.py"
"""The same with other models and a limit of staleness."""
NOTEBOOK = ROOT / "examples" / "tutorial" / "tutorial.ipynb"
MODEL = str(LAB / "tool_policy" / "canonical")
STEPS, GROUPS, SAMPLES = size(4, 10), 4, 8


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of TRL's environment. A missing one is a failure in CI; elsewhere the tests are skipped."""
    command = [sys.executable, str(ROOT / "scripts" / "setup-trainers"), "--where", "trl"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        words = f"no environment for TRL; make it with: scripts/setup-trainers trl\n{found.stderr}"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    return found.stdout.strip()


@pytest.fixture(scope="module")
def server(tool_policy: LabProcess) -> Iterator[LabProcess]:
    """The shared server; training changes its weights, which are put back."""
    yield tool_policy
    asyncio.run(put_back(tool_policy))


async def put_back(server: LabProcess) -> None:
    """Give the server the weights that it started with."""
    async with SGLangClient(server.url) as client:
        (result,) = await client.control.swap_weights(MODEL, version="default")
        assert result.ok, result.message


def environment() -> dict[str, str]:
    """Return the variables of a trainer's process, which imports this checkout's package."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**env, "PYTHONPATH": str(ROOT / "src")}


def run(command: list[str], seconds: float = 240) -> str:
    """Run a command in the trainer's environment."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment(), check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def train(
    python: list[str],
    url: str,
    folder: Path,
    *options: str,
    name: str = "",
    seconds: float = 240,
    program: Path = EXAMPLE,
) -> list[dict[str, Any]]:
    """Train; return what was logged. The runs are in `runs` of the folder, or in the folder `name` below that."""
    report = folder / f"report{name}.json"
    where = ["--url", url, "--model", MODEL, "--runs", str(folder / "runs" / name), "--report", str(report)]
    run([*python, str(program), *where, *options], seconds)
    logged: list[dict[str, Any]] = [line for line in json.loads(report.read_text()) if "loss" in line]
    return logged


def versions_in(directory: Path) -> set[str | None]:
    trees = [record.tree() for record in Ledger(directory).episodes()]
    return {span.version for tree in trees for turn in tree.turns for span in turn.versions}


def trained_in(directory: Path) -> int:
    """Return the number of trained tokens in a ledger, which must be proved."""
    certificate = verify(directory)
    assert certificate.proved, certificate.text()
    trees = [record.tree() for record in Ledger(directory).episodes()]
    return sum(int(one.loss_mask.sum()) for tree in trees for one in tree.trajectories())


def test_ten_steps_of_grpo(python: str, server: LabProcess, tmp_path: Path) -> None:
    logged = train([python], server.url, tmp_path, "--steps", str(STEPS), "--groups", str(GROUPS))
    assert len(logged) == STEPS
    runs = sorted((tmp_path / "runs").iterdir())
    assert [one.name for one in runs] == [f"step-{step:06d}" for step in range(STEPS)]

    seen: set[str | None] = set()
    for step, (line, directory) in enumerate(zip(logged, runs, strict=True)):
        assert math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]), line
        assert line["rollout/masked"] == 0.0 and "sync/seconds" in line, line
        # The trainer scores the tokens as the engine did when it sampled them: same weights, same tokens, same places.
        assert 0.0 < line["sampling/sampling_logp_difference/mean"] <= 1e-3, line
        assert line["sampling/sampling_logp_difference/max"] <= 1e-2, line
        assert versions_in(directory) == {str(step)}
        seen |= versions_in(directory)
        episodes = GROUPS * SAMPLES
        assert sum(verify(directory).episodes.values()) == episodes
        # What is proved is what was trained, to the token; TRL logs the mean over its rows.
        assert trained_in(directory) / episodes == pytest.approx(line["completions/mean_length"])
    assert len(seen) == STEPS
    assert sum(line["grad_norm"] > 0 for line in logged) >= STEPS - 1, (
        "a step without a gradient may be chance, not two"
    )
    check_values(runs, logged)
    check_pages(tmp_path, {"runs": logged}, MODEL)
    drifts = [line["sampling/sampling_logp_difference/mean"] for line in logged]
    seconds = {
        name: sum(line[name] for line in logged) / STEPS for name in ("sync/seconds", "rollout/seconds", "step_time")
    }
    print(f"rewards {[round(line['reward'], 2) for line in logged]}; drift {max(drifts):.1e}; mean seconds {seconds}")


def check_values(runs: list[Path], logged: list[dict[str, Any]], *, again: bool = False) -> None:
    """The values on disk give the trainer's own log, and their lengths agree with the ledger.

    `again`: the trainer has trained with the episodes before, so its logprobs are no longer those of the engine.
    """
    for line, directory in zip(logged, runs, strict=True):
        values, engine = values_in(directory)
        mask = values["loss_mask"] == 1
        sampled = sum(len(turn.sampled) for one in Ledger(directory).episodes() for turn in one.tree())
        assert verify(directory).trainer_values == len(values) * sampled == len(values) * len(mask)
        assert mask.sum() == trained_in(directory)
        assert values["entropy"][mask].mean() == pytest.approx(line["entropy"], rel=1e-4)
        assert values["clip"][mask].mean() == pytest.approx(line["clip_ratio/region_mean"], abs=1e-6)
        if not again:
            difference = np.abs(values["logprob"] - engine)[mask]
            assert difference.mean() == pytest.approx(line["sampling/sampling_logp_difference/mean"], abs=2e-6)
        # The trainer's loss is the mean of minus ratio times advantage, clipped; the first time, all ratios are 1.
        ratio, advantage = values["ratio"], values["advantage"]
        loss = -np.minimum(ratio * advantage, ratio.clip(0.8, 1.2) * advantage)[mask].mean()
        assert loss == pytest.approx(line["loss"], abs=2e-4), line
        for task in {record.id.rpartition("/")[0] for record in Ledger(directory).episodes()}:
            check_advantages(directory, task)


def check_advantages(directory: Path, task: str) -> None:
    """The advantages of a task's samples are those that GRPO computes of the recorded rewards."""
    file = TrainerFile(directory)
    records = [record for record in Ledger(directory).episodes() if record.id.startswith(f"{task}/")]
    rewards = np.array([record.reward.data["value"] for record in records if record.reward is not None])
    wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    assert [file.of(record.id)["advantage"][0] for record in records] == pytest.approx(wanted.tolist(), abs=1e-5)


def values_in(directory: Path) -> tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[np.float64]]:
    """Return every value of `trainer.jsonl` by name, and the engine's logprobs, for all sampled tokens in one order."""
    file, found, engine = TrainerFile(directory), dict[str, list[float | None]](), list[float]()
    for record in Ledger(directory).episodes():
        turns = {turn.id: len(turn.sampled) for turn in record.tree()}
        for name, given in file.of(record.id).items():
            for turn, count in turns.items():
                values = given[turn]
                found.setdefault(name, []).extend(values if isinstance(values, list) else [values] * count)
        engine += [value for turn in record.tree() for value in turn.logprobs]
    return {name: np.array(values, dtype=float) for name, values in found.items()}, np.array(engine)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_seeds_of_twenty_steps(python: str, server: LabProcess, tmp_path: Path) -> None:
    """Each is one training with the values of every step; both have the same tasks, in another order."""
    logs = {}
    for name in ("seed-0", "seed-1"):
        options = ["--steps", "20", "--groups", str(GROUPS), "--seed", name[-1]]
        logged = logs[name] = train([python], server.url, tmp_path, *options, name=name, seconds=1800)
        runs = sorted((tmp_path / "runs" / name).iterdir())
        assert len(logged) == len(runs) == 20
        check_values(runs, logged)
        certificates = [verify(directory) for directory in runs]
        assert all(certificate.proved for certificate in certificates)
        values, sizes = sum(one.trainer_values for one in certificates), [(one / TRAINER_FILE).stat() for one in runs]
        print(f"{name}: {values} values agree with 20 ledgers; {sum(one.st_size for one in sizes)} bytes")
        asyncio.run(put_back(server))
    check_pages(tmp_path / "runs", logs, MODEL)


@pytest.mark.soak
def test_two_steps_of_the_same_episodes(python: str, server: LabProcess, tmp_path: Path) -> None:
    """The values are those of the last step with them: its ratio is not 1, and some tokens are clipped."""
    options = ["--steps", "4", "--groups", str(GROUPS), "--iterations", "2", "--learning-rate", "0.003"]
    logged = train([python], server.url, tmp_path, *options)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(logged) == 4 and [one.name for one in runs] == ["step-000000", "step-000002"]
    check_values(runs, logged[1::2], again=True)
    clipped = []
    for directory in runs:
        values, _ = values_in(directory)
        mask = values["loss_mask"] == 1
        changed = (values["ratio"] != 1)[mask].mean()
        clipped.append(values["clip"][mask].mean())
        print(f"{directory.name}: the ratio is not 1 for {changed:.1%} of the tokens, {clipped[-1]:.1%} are clipped")
        assert changed > 0.5
    assert 0 < clipped[0] < 0.5, "where nothing has an advantage, nothing is clipped: not asked of the second step"


def test_other_models_and_old_weights(python: str, server: LabProcess, tmp_path: Path) -> None:
    """A simulated user is in the conversations and not trained; nor is what older weights sampled that came back."""
    options = ["--steps", "2", "--groups", "1", "--models", server.url, "--max-staleness", "0"]
    logged = train([python], server.url, tmp_path, *options, program=EXTENDED)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(logged) == len(runs) == 2
    for line, directory, decision in zip(logged, runs, ("kept", "masked"), strict=True):
        certificate = verify(directory)
        assert certificate.proved and certificate.staleness == {decision: SAMPLES}, certificate.text()
        assert certificate.other_models == {"user": SAMPLES * (ROUNDS + 1)}
        tokens = certificate.tokens
        assert tokens.sampled == tokens.trained + tokens.stale and tokens.trained > 0
        assert (tokens.stale > 0) == (decision == "masked")
        # What is trained is in TRL's own mask, to the token; it scores these tokens as the weights of the step did.
        assert tokens.trained / SAMPLES == pytest.approx(line["completions/mean_length"])
        assert math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]), line
        assert line["rollout/masked"] < 1.0 and (decision == "masked" or line["rollout/masked"] == 0.0)
        assert 0.0 < line["sampling/sampling_logp_difference/mean"] <= 1e-3, line
    assert versions_in(runs[1]) > versions_in(runs[0]), "both versions sampled in the second step"


@pytest.mark.soak
def test_adapters_reach_the_engine_merged(python: str, server: LabProcess, tmp_path: Path) -> None:
    options = ["--steps", "3", "--groups", "2", "--lora", "--learning-rate", "0.003"]
    logged = train([python], server.url, tmp_path, *options)
    assert len(logged) == 3
    for line, directory in zip(logged, sorted((tmp_path / "runs").iterdir()), strict=True):
        assert line["sampling/sampling_logp_difference/mean"] <= 1e-3, line
        assert trained_in(directory) > 0


def test_adapters_are_loaded_under_a_name_of_their_step(python: str, lora: LabProcess, tmp_path: Path) -> None:
    """The engine keeps its weights; the versions on record name the adapter, which a rescoring needs."""
    options = ["--steps", "2", "--groups", "1", "--lora", "--sync", "adapter", "--learning-rate", "0.003"]
    logged = train([python], lora.url, tmp_path, *options)
    assert len(logged) == 2
    runs = sorted((tmp_path / "runs").iterdir())
    names = []
    for number, (line, directory) in enumerate(zip(logged, runs, strict=True)):
        assert line["rollout/masked"] == 0.0 and "sync/seconds" in line, line
        assert line["sampling/sampling_logp_difference/mean"] <= 1e-3, line
        assert line["sampling/sampling_logp_difference/max"] <= 1e-2, line
        assert trained_in(directory) > 0
        (version,) = versions_in(directory)
        weights, _, name = str(version).partition("+lora:")
        assert weights == "default" and name.startswith("policy-") and name.endswith(f"-v{number}")
        names.append(name)

    async def check() -> None:
        async with SGLangClient(lora.url) as client:
            (loaded,) = (await client.control.adapters()).values()
        assert names[1] in loaded and names[0] not in loaded, "the one before is unloaded"
        report = await rescore(runs[1], lora.url)
        assert report.verdict is RescoreVerdict.AGREES and report.largest < 1e-3, report.text()
        assert (await rescore(runs[0], lora.url)).verdict is RescoreVerdict.NOTHING

    asyncio.run(check())
    print([line["sampling/sampling_logp_difference/max"] for line in logged])


@pytest.mark.soak
def test_two_processes_share_an_engine(python: str, server: LabProcess, tmp_path: Path) -> None:
    launcher = [python, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--standalone"]
    logged = train(launcher, server.url, tmp_path, "--steps", "2", "--groups", "1")
    assert len(logged) == 2
    runs = sorted((tmp_path / "runs").iterdir())
    assert [one.name for one in runs] == [f"step-{step:06d}-rank{rank}" for step in (0, 1) for rank in (0, 1)]
    for number, directory in enumerate(runs):
        assert sum(verify(directory).episodes.values()) == SAMPLES and trained_in(directory) > 0
        # One name a step, on both; with a tail where an earlier training left the engine under that very name.
        (version,) = versions_in(directory)
        assert str(version).split("-")[0] == str(number // 2)
    assert all(line["sampling/sampling_logp_difference/mean"] <= 1e-3 for line in logged)


def test_the_tutorial_as_a_notebook(python: str, server: LabProcess, tmp_path: Path) -> None:
    """Every cell runs; only the address, the weights that the server has, and the number of episodes differ."""
    text = NOTEBOOK.read_text()
    replaced = {
        "http://localhost:30000": server.url,
        "tool_policy/noncanonical": "tool_policy/canonical",
        "train.py --steps 60": "train.py --steps 2",
        "GROUPS, SAMPLES = 8, 8": "GROUPS, SAMPLES = 2, 8",
        "-n 8 --max-turns": "-n 2 --max-turns",
    }
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "strands-sglang").symlink_to(ROOT)
    folder = tmp_path / "tutorial"
    folder.mkdir()
    env = environment()
    printed = run_notebook(text, folder, {**env, "PATH": f"{Path(python).parent}{os.pathsep}{env['PATH']}"})

    (shown,) = [text for line, text in printed.items() if line.startswith("strands-sglang show runs/train")]
    assert re.findall(r"^step-\d+", shown, re.MULTILINE) == ["step-000000", "step-000001"] and "PROVED" in shown
    (compared,) = [text for line, text in printed.items() if line.startswith("strands-sglang rollout")]  # the last
    assert "16 tasks in both" in compared and "B - A" in compared
    assert all(verify(step).trainer_values for step in (folder / "runs" / "train").iterdir())
    for name, version in (("before", None), ("after", "1")):  # those that sampled the second step
        assert sum(verify(folder / "runs" / name).episodes.values()) == 16 * 2
        assert version is None or versions_in(folder / "runs" / name) == {version}
    assert (folder / "trained" / "config.json").is_file()


def test_logprobs_compared_and_adapters_merged(python: str) -> None:
    checks = ["drift", "merge", "refused"]
    output = run([python, str(ROOT / "tests" / "support" / "trainers" / "trl_checks.py"), *checks])
    assert [line for line in output.splitlines() if line.startswith("checked")] == [f"checked {one}" for one in checks]
