#!/usr/bin/env python3
"""The experiment in one command; finished runs are skipped.

    research/retokenization/run.py --short    # the question itself, in 17 minutes on two cores
    research/retokenization/run.py            # everything in the report: hours
    research/retokenization/run.py --check    # a few steps: are tokens and logprobs exact?

The first time, it makes an environment with TRL and installs the lab's engine. Stop it at any time, with Ctrl-C or a
signal, and start it again: only the runs that were under way begin anew. Each worker has its own engine, which ends
with it. Exit status: 0 if every run finished and what must be exact is exact.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from parts import CHECK, PARTS, SHORT, finished, plan
from settings import ROOT, Settings

TRL = "1.16.0"
"""Version of TRL whose trainer `trainer.py` extends."""
FAILURES = 3
"""Consecutive runs that may fail before a worker stops."""
SECONDS = 200.0
"""Assumed duration of a run of 30 steps before the first one has been timed."""
_STOPPED = "run.py: stopped; the same command continues with the runs that were under way."
_AGAIN = "STRANDS_SGLANG_TRAINER_ENVIRONMENT"  # set when the command has moved to the trainer's environment


def summary_of(path: Path) -> dict[str, Any]:
    """Return the summary at the end of a results file."""
    summary: dict[str, Any] = json.loads(path.read_text().splitlines()[-1])["summary"]
    return summary


class Clock:
    """Estimates the time that is left from the runs that are done."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}

    @staticmethod
    def work(settings: Settings) -> float:
        """Return the size of a run: episodes, counted by their turns."""
        episodes = settings.steps * settings.groups * settings.samples + settings.held_out
        return episodes * (settings.operations + 1)

    @staticmethod
    def kind(settings: Settings) -> str:
        """Return what determines the speed of a run, besides its size."""
        return "smollm2" if settings.policy.startswith("smollm2") else "tool-policy"

    def add(self, settings: Settings, seconds: float) -> None:
        """Note how long a run took."""
        self.rates.setdefault(self.kind(settings), []).append(seconds / self.work(settings))

    def left(self, runs: Sequence[Settings]) -> float:
        """Return the seconds that some runs will take."""
        total = 0.0
        for settings in runs:
            rates = self.rates.get(self.kind(settings), [])[-10:]
            slower = 30.0 if self.kind(settings) == "smollm2" else 1.0
            rate = sum(rates) / len(rates) if rates else slower * SECONDS / self.work(Settings())
            total += rate * self.work(settings)
        return total


@contextmanager
def claimed(settings: Settings, results: Path) -> Iterator[bool]:
    """Claim a run for this process; the result says whether there is something to do.

    The claim is a lock on a file, so it ends with the process, however that ends.
    """
    with (results / f".{settings.name}.claim").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield not finished(settings, results)


def work(
    runs: Sequence[Settings],
    results: Path,
    run: Callable[[Settings], Path],
    *,
    workers: int = 1,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is neither finished nor claimed by another worker, and say so in a line per run.

    Args:
        runs: All runs, in order.
        results: Folder of results.
        run: Runs one and returns its results file.
        workers: Number of processes that do this, for the estimate of the time.
        minutes: Start no run after so many minutes; None: run all.
        say: Where the lines go.

    Returns:
        How many runs failed. One that failed has a file `NAME.failed` with the reason, and is tried again next time.
    """
    results.mkdir(parents=True, exist_ok=True)
    clock, began, failed, in_a_row = Clock(), time.monotonic(), 0, 0
    for settings in runs:
        if minutes is not None and time.monotonic() - began > minutes * 60:
            say(f"stopped after {minutes:g} minutes")
            break
        with claimed(settings, results) as mine:
            if not mine:
                continue
            start = time.monotonic()
            try:
                summary = summary_of(run(settings))
            except Exception:
                failed, in_a_row = failed + 1, in_a_row + 1
                (results / f"{settings.name}.failed").write_text(traceback.format_exc())
                say(f"{settings.name} failed, see {settings.name}.failed")
                if in_a_row >= FAILURES:
                    say(f"{FAILURES} runs failed in a row: stopped")
                    break
                continue
        in_a_row = 0
        (results / f"{settings.name}.failed").unlink(missing_ok=True)
        clock.add(settings, summary["seconds"])  # without the time to start an engine or to make a policy
        proved = summary.get("verified")
        note = f", {proved['proved']}/{proved['episodes']} episodes proved" if proved else ""
        left = [one for one in runs if not finished(one, results)]
        say(
            f"[{len(runs) - len(left)}/{len(runs)}] {settings.part}: {settings.name} {summary['start']:.2f} -> "
            f"{summary['end']:.2f}, {time.monotonic() - start:.0f} s{note}; "
            f"about {clock.left(left) / workers / 60:.0f} min left"
        )
    return failed


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="The re-tokenisation experiment; finished runs are skipped.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="four arms, two seeds, 20 steps: 17 minutes on two cores")
    which.add_argument("--check", action="store_true", help="a few steps of five arms: is everything exact?")
    which.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run, in order")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the main comparison (default: 5)")
    parser.add_argument("--sweep-seeds", type=int, default=3, help="seeds of the sweeps (default: 3)")
    parser.add_argument(
        "--results", type=Path, help="folder of results (default: runs/retokenization, with -short or -check)"
    )
    parser.add_argument("--workers", type=int, help="runs at the same time, a core each (default: 2; 1 with --check)")
    parser.add_argument("--minutes", type=float, help="start no run after so many minutes")
    parser.add_argument("--steps", type=int, help="steps of every run, to try it out")
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are finished")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # number of a process that several_workers starts
    options = parser.parse_args(arguments)
    if options.results is None:
        suffix = "-check" if options.check else "-short" if options.short else ""
        options.results = ROOT / "runs" / f"retokenization{suffix}"
    if options.workers is None:
        options.workers = 1 if options.check else min(2, os.cpu_count() or 1)
    return options


def runs_of(options: argparse.Namespace) -> list[Settings]:
    """Return the runs that the options ask for."""
    chosen = SHORT if options.short else CHECK if options.check else None
    runs = list(chosen) if chosen is not None else plan(options.parts, options.seeds, options.sweep_seeds)
    return [replace(settings, steps=options.steps) for settings in runs] if options.steps else runs


def trl_version() -> str | None:
    """Return the version of TRL in this environment; None if there is none."""
    try:
        return importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return None


def move_to_trainer() -> None:
    """Go on with the Python of an environment that has TRL, unless this one has it; make the environment if needed."""
    os.environ.update(OMP_NUM_THREADS="1", TRL_EXPERIMENTAL_SILENCE="1")  # two threads on a busy core are far slower
    if trl_version() == TRL:
        return
    if _AGAIN in os.environ:
        sys.exit(
            f"run.py: the environment of scripts/setup-trainers has no TRL {TRL}. Remove its folder and try again."
        )
    print(f"run.py: this Python has no TRL {TRL}; using the environment of scripts/setup-trainers", flush=True)
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "setup-trainers", "trl"], stdout=subprocess.PIPE, text=True, check=False
    )
    if made.returncode:
        sys.exit("run.py: scripts/setup-trainers trl failed, see above.")
    python = made.stdout.split()[-1]
    os.execve(python, [python, str(Path(__file__).resolve()), *sys.argv[1:]], {**os.environ, _AGAIN: "1"})


def set_up_engine() -> None:
    """Install the lab's engine if it is missing, once and visibly, before workers need it."""
    sys.path.append(str(ROOT / "lab"))
    import engine

    try:
        engine.ensure([])
    except engine.LabError as error:
        sys.exit(f"run.py: {error}")


def stop_on_signal(stop: Callable[[], Any]) -> None:
    """Call a function at Ctrl-C or SIGTERM, and end.

    An exception in the handler would not do: it may be raised in a callback that ignores it, and the run would go on.
    """

    def handler(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        stop()
        print(_STOPPED, file=sys.stderr, flush=True)
        os._exit(128 + number)

    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def one_worker(runs: Sequence[Settings], options: argparse.Namespace) -> int:
    """Work on the runs with an engine of its own; return how many failed."""
    from engines import Engine
    from train import quiet, train
    from warmup import ensure

    quiet()
    number = options.worker or 1
    student, teacher = (Engine(options.results / f"{name}-{number}.log") for name in ("engine", "teacher"))
    stop_on_signal(lambda: (student.close(), teacher.close()))

    def run(settings: Settings) -> Path:
        ensure(settings.policy)
        scorer = teacher.serving(ensure(settings.teacher)) if settings.teacher else None
        return train(settings, student.trained(settings), options.results, teacher=scorer)

    def say(line: str) -> None:
        print(line if options.worker is None else f"worker {number}: {line}", flush=True)

    try:
        return work(runs, options.results, run, workers=options.workers, minutes=options.minutes, say=say)
    finally:
        student.close()
        teacher.close()


def several_workers(options: argparse.Namespace) -> None:
    """Work in several processes, until all of them have ended."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    workers: list[subprocess.Popen[bytes]] = []

    def stop() -> None:
        for worker in workers:
            worker.terminate()  # Ctrl-C has reached them already; a signal to this process has not
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(60)

    stop_on_signal(stop)
    workers += [subprocess.Popen([*command, "--worker", str(number + 1)]) for number in range(options.workers)]
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.5)  # not `wait()`, which holds a lock that the handler needs


def report(runs: Sequence[Settings], options: argparse.Namespace) -> int:
    """Print the results and whether they are exact, and draw them; return how many problems there are."""
    from plot import write_report
    from results import exactness, read_run

    paths = [options.results / f"{settings.name}.jsonl" for settings in runs]
    done = [run for path in paths if path.exists() and (run := read_run(path)) is not None]
    lines, problems = exactness(done)
    print("\n".join([*lines, *(f"NOT EXACT: {problem}" for problem in problems)]))
    if not options.check:
        print(f"report: {write_report(done, options.results)}")
    return len(problems)


def main() -> None:
    """Run what was asked for, and report it."""
    options = options_of()
    runs = runs_of(options)
    if options.list:
        for settings in runs:
            print("done" if finished(settings, options.results) else "    ", settings.part, settings.name)
        return
    move_to_trainer()
    if options.worker is not None:
        sys.exit(1 if one_worker(runs, options) else 0)
    options.results.mkdir(parents=True, exist_ok=True)
    todo = [settings for settings in runs if not finished(settings, options.results)]
    minutes = Clock().left(todo) / options.workers / 60
    print(f"{len(runs)} runs, {len(runs) - len(todo)} finished, {len(todo)} to do, about {minutes:.0f} min", flush=True)
    if todo:
        set_up_engine()
        several_workers(options) if options.workers > 1 else one_worker(runs, options)
    left = sum(not finished(settings, options.results) for settings in runs)
    if left:
        print(f"{left} of {len(runs)} runs are not finished")
    sys.exit(1 if left + report(runs, options) else 0)


if __name__ == "__main__":
    main()
