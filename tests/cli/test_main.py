"""The command line as a whole, in processes of its own: Ctrl-C, and output that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interrupts import PATIENCE, heeds_interrupts, press_ctrl_c, told
from ledger.episodes import RUN, plain_episode
from rollout.scripts import PromptEngine, assert_proved, run, steps
from strands_sglang.cli import verify
from strands_sglang.cli.main import main
from strands_sglang.ledger.run_file import write_run
from strands_sglang.ledger.seal import seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.rollout.resume import read_before

TESTS = Path(__file__).resolve().parent.parent


def started(*arguments: str, module: str = "strands_sglang.cli", **pipes: Any) -> subprocess.Popen[str]:
    paths = [str(TESTS), str(TESTS / "cli"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        preexec_fn=heeds_interrupts,
        **pipes,
    )


def slow_reward(episode: Any) -> float:
    """Scores the first task, says that it is under way, and takes its time with the second."""
    if episode.task.id == "b":
        import time

        print("under way", flush=True)
        time.sleep(3600)
    return 1.0


async def test_ctrl_c(tmp_path: Path) -> None:
    from strands_sglang.rollout import Task

    tasks = [Task("go", id="a"), Task("go", id="b")]
    await run(lambda task, model: lambda: None, tasks, PromptEngine(steps(1)), tmp_path)
    process = started(
        *("score", str(tmp_path), "--reward", f"{Path(__file__).stem}:slow_reward"), stdout=subprocess.PIPE
    )
    (line,) = press_ctrl_c(process)
    assert process.returncode == 130
    assert line.startswith("strands-sglang: interrupted: scores that were had by then are in the ledger, and count; to")
    assert line.endswith(f"score {tmp_path} --reward test_main:slow_reward")
    assert_proved(tmp_path)
    before = read_before(tmp_path)
    assert before is not None and before.finished["b/0"].reward is None


def test_a_command_that_writes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def pressed(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", pressed)
    assert main(["verify", "runs/x"]) == 130
    assert capsys.readouterr().err.startswith("strands-sglang: interrupted: nothing was written; to begin again: ")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_nobody_reads_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_run(tmp_path, {"run": RUN})
    with LedgerWriter(tmp_path) as writer:
        plain_episode(writer.write)
    seal(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    process = started("verify", str(tmp_path), *arguments, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=PATIENCE)
    assert not told(errors) and process.returncode == 141
