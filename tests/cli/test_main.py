"""The command line in separate processes: import cost, Ctrl-C, broken pipes."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strands_sglang
from strands_sglang.cli.main import COMMANDS, COMPLETE_VARIABLE, main
from strands_sglang.proof.rescore import TOLERANCE
from strands_sglang.runs.resume import read_previous_run
from support.cli import exit_code
from support.interrupts import PATIENCE, heeds_interrupts, press_ctrl_c, told
from support.ledger.episodes import plain_episode, written_run
from support.rollout.scripts import PromptEngine, assert_proved, run, steps

TESTS = Path(__file__).resolve().parent.parent


def started(*arguments: str, **pipes: Any) -> subprocess.Popen[str]:
    """Start the command line in a process that can import the modules of these tests."""
    paths = [str(TESTS), str(TESTS / "cli"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "strands_sglang.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        preexec_fn=heeds_interrupts,
        **pipes,
    )


def slow_reward(episode: Any) -> float:
    """Score the first task, announce the second, and block."""
    if episode.task.id == "b":
        import time

        print("under way", flush=True)
        time.sleep(3600)
    return 1.0


HELP = """
import sys, time, types
package = types.ModuleType("strands_sglang")  # without the imports of the package's own __init__
package.__path__ = sys.argv[1:]
sys.modules["strands_sglang"] = package
from strands_sglang.cli.main import COMMANDS, main
for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
    try:
        main(arguments)
    except SystemExit as exit:
        assert exit.code == 0
heavy = {"numpy", "orjson", "aiohttp", "asyncio", "strands", "transformers"} & set(sys.modules)
print(time.process_time(), *heavy, file=sys.stderr)
"""


@pytest.mark.timing
def test_help_imports_little() -> None:
    package = Path(strands_sglang.__file__).parent
    done = subprocess.run([sys.executable, "-c", HELP, str(package)], capture_output=True, text=True, timeout=PATIENCE)
    seconds, *heavy = done.stderr.split()
    assert not heavy and float(seconds) < 2  # 0.1 seconds on an idle machine
    assert done.stdout.count("Exit codes:") == done.stdout.count("Examples:") == 1 + len(COMMANDS)


CPU = """
import sys, time
from strands_sglang.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    print(time.process_time(), *(name for name in sys.modules if ".cli." in name), file=sys.stderr)
"""


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_has_a_help_page_that_takes_little_cpu_time(name: str) -> None:
    """0.3 seconds at most, 0.1 on an idle machine; the list of commands imports none of them."""
    arguments = [*filter(None, [name]), "--help"]
    fastest = math.inf
    for _ in range(5):  # a busy machine
        words = [sys.executable, "-c", CPU, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        seconds, *imported = done.stderr.split()
        fastest = min(fastest, float(seconds))
        if fastest < 0.3:
            break
    assert fastest < 0.3
    if not name:
        assert sorted(imported) == [f"strands_sglang.cli.{module}" for module in ("_command", "_wording", "main")]
        assert all(f"  {command} " in done.stdout for command in COMMANDS)
    else:
        assert f"  strands-sglang {name}" in done.stdout.partition("Examples:")[2]
        assert name == "completion" or "--json" in done.stdout


def test_without_arguments_the_help_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code([])
    printed = capsys.readouterr()
    assert code == 2 and not printed.out and "Commands:" in printed.err


@pytest.mark.parametrize(("name", "words"), [("verfy", "did you mean 'verify'?"), ("x\x1b[2K", r"command 'x\x1b[2K'")])
def test_an_unknown_command(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code([name])
    printed = capsys.readouterr().err
    assert code == 2 and words in printed and "\x1b" not in printed


def test_default_tolerance_in_the_help_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "--help"])
    assert f"(default: {TOLERANCE:g})" in " ".join(capsys.readouterr().out.split())


async def test_ctrl_c(tmp_path: Path) -> None:
    from strands_sglang.runs import Task

    tasks = [Task("go", id="a"), Task("go", id="b")]
    await run(lambda task, model: lambda: None, tasks, PromptEngine(steps(1)), tmp_path)
    process = started(
        *("score", str(tmp_path), "--reward", f"{Path(__file__).stem}:slow_reward"), stdout=subprocess.PIPE
    )
    lines = press_ctrl_c(process)
    assert len(lines) == 1, "\n".join(lines)
    line = lines[0]
    assert process.returncode == 130
    assert line.startswith("strands-sglang: interrupted: scores computed so far are in the ledger and count; run again")
    assert line.endswith(f"score {tmp_path} --reward test_main:slow_reward")
    assert_proved(tmp_path)
    before = read_previous_run(tmp_path)
    assert before is not None and before.finished["b/0"].reward is None


def test_ctrl_c_in_a_command_that_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["strands_sglang.proof.verify"], "verify", pressed)
    assert main(["verify", "runs/x"]) == 130
    assert capsys.readouterr().err.startswith("strands-sglang: interrupted: nothing was written; run again with: ")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_broken_pipe(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with written_run(tmp_path) as writer:
        plain_episode(writer.write)
    reading, writing = os.pipe()
    os.close(reading)
    process = started("verify", str(tmp_path), *arguments, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=PATIENCE)
    assert not told(errors) and process.returncode == 141


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script and "strands-sglang" in script


def test_an_unknown_shell() -> None:
    assert exit_code(["completion", "tcsh"]) == 2


def completed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["strands-sglang", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit) as exit:
        main([])
    assert exit.value.code == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_completions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(capsys, monkeypatch, "s") == [name for name in COMMANDS if name.startswith("s")]
    assert completed(capsys, monkeypatch, "show", "--min") == ["--min-reward"]
    assert completed(capsys, monkeypatch, "show", "runs", "--ended", "turn") == ["turn_limit", "turn_truncated"]
    assert completed(capsys, monkeypatch, "completion", "z") == ["zsh"]
    assert completed(capsys, monkeypatch, "d") == ["doctor", "drift"]
    assert completed(capsys, monkeypatch, "doctor", "--only", "pre") == ["prefix cache"]
    assert completed(capsys, monkeypatch, "view", "--ex") == ["--export"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "strands-sglang"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m strands_sglang.cli "$@"\n')
    program.chmod(0o755)
    lines = """
    source <(strands-sglang completion bash)
    COMP_WORDS=(strands-sglang temp) COMP_CWORD=1
    _strands_sglang_completion strands-sglang temp strands-sglang
    echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.strip() == "templates", done.stderr
