#!/usr/bin/env python3
"""All runs of the experiment, one after the other, on one engine; finished runs are skipped.

    OMP_NUM_THREADS=1 $(scripts/setup-trainers trl) examples/retokenization/sweep.py            # everything
    ... sweep.py --parts main canonical --seeds 5                                               # some parts
    ... sweep.py --list                                                                         # what is left to do

Stop it at any time, with Ctrl-C or a signal, and start it again: only the run that was under way begins anew. Runs are
ordered so that the results are balanced whenever it stops: all arms of one seed, then all arms of the next. The engine
is started by this command and ends with it, unless `--url` names one; its weights are those of the current run.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import MAIN
from settings import ROOT, Settings, policy_folder

FAILURES = 3
"""Consecutive runs that may fail before the queue stops."""
SECONDS = 100.0
"""Assumed duration of a run of 30 steps before the first one has been timed."""
SMOLLM2 = Settings(
    policy="smollm2-tools",
    steps=12,
    groups=4,
    samples=8,
    learning_rate=1e-5,
    held_out=64,
    micro_batch=4,
    part="smollm2",
)
"""The larger run: 135 million parameters, 32 episodes per step."""


def _runs(part: str, seeds: int, arms: Sequence[str], *variants: dict[str, Any]) -> list[Settings]:
    """Return the runs of a part: for each seed, each variant, each arm."""
    return [
        Settings(**{"arm": arm, "seed": seed, "part": part, **variant})
        for seed in range(seeds)
        for variant in variants or ({},)
        for arm in arms
    ]


PARTS: dict[str, Callable[[int, int], list[Settings]]] = {
    "main": lambda seeds, _: _runs("main", seeds, MAIN),
    "canonical": lambda seeds, _: _runs(
        "canonical", min(seeds, 3), ("exact", "decode", "render", "render-engine"), {"policy": "canonical"}
    ),
    "ambiguity": lambda _, few: _runs(
        "ambiguity", few, ("exact", "decode"), *({"policy": f"split-{share:02d}"} for share in (2, 5, 40))
    ),
    "control": lambda _, few: _runs("control", few, ("exact-engine", "exact-tis")),
    "learning-rate": lambda _, few: _runs(
        "learning-rate", few, ("exact", "decode", "render"), *({"learning_rate": rate} for rate in (1e-4, 1e-3))
    ),
    "turns": lambda _, few: _runs(
        "turns",
        few,
        ("exact", "decode"),
        *({"policy": f"operations-{count}", "operations": count} for count in (1, 4)),
    ),
    "temperature": lambda _, few: _runs(
        "temperature", few, ("exact", "decode", "render"), *({"temperature": value} for value in (0.6, 1.3))
    ),
    "steps": lambda _, few: _runs("steps", few, ("exact", "decode"), {"steps": 120}),
    "smollm2": lambda _, few: [
        replace(SMOLLM2, arm=arm, seed=seed) for seed in range(few) for arm in ("exact", "render-engine", "decode")
    ],
}
"""The parts of the experiment, in the order in which they run."""


def plan(parts: Sequence[str], seeds: int, few: int = 1) -> list[Settings]:
    """Return the runs of some parts, in order; a run that belongs to several parts occurs once.

    Args:
        parts: Names of the parts.
        seeds: Seeds of the main comparison.
        few: Seeds of the sweeps.
    """
    found: dict[str, Settings] = {}
    for part in parts:
        for settings in PARTS[part](seeds, few):
            found.setdefault(settings.name, settings)
    return list(found.values())


def finished(settings: Settings, results: Path) -> bool:
    """Return whether the results of a run are complete."""
    return (results / f"{settings.name}.jsonl").exists()


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


class Engine:
    """The lab's engine for the architecture of a policy; started when it is needed, restarted when it is gone."""

    def __init__(self, url: str | None, log: Path) -> None:
        self._given, self._log = url, log
        self._process: subprocess.Popen[bytes] | None = None
        self._kind, self._url = "", ""

    def url(self, settings: Settings) -> str:
        """Return the address of an engine that can hold the weights of a run's policy."""
        if self._given is not None:
            return self._given
        kind = Clock.kind(settings)
        if self._process is None or self._process.poll() is not None or kind != self._kind:
            self.close()
            sys.path.append(str(ROOT / "lab"))
            import engine

            port = engine.free_port()
            folder = policy_folder(settings.policy) if kind == "smollm2" else ROOT / "lab" / "tool_policy" / "canonical"
            more = ["--max-running-requests", "512", "--max-total-tokens", "200000"] if kind != "smollm2" else []
            command = [sys.executable, ROOT / "lab" / "serve", folder, "--port", str(port), "--die-with-parent", *more]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
            self._kind, self._url = kind, f"http://127.0.0.1:{port}"
            self._wait()
        return self._url

    def _wait(self, seconds: float = 600.0) -> None:
        """Wait until the engine answers."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=30) as response:
                    if response.status == 200:
                        return
            except OSError:
                time.sleep(1.0)
        raise RuntimeError(f"the engine did not start, see {self._log}")

    def close(self) -> None:
        """End the engine, if this command started it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


@contextmanager
def only_one(results: Path, share: str) -> Iterator[None]:
    """Hold a lock on a share of the folder of results: two queues would write the same files."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / f".lock-{share.replace('/', '-')}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"sweep.py: another queue works on share {share} of {results}. Wait for it, or give another one.")
        yield


def share_of(runs: Sequence[Settings], share: str) -> list[Settings]:
    """Return every n-th run, beginning with the k-th, for a share "k/n"."""
    number, _, count = share.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f"share must be K/N with K from 1 to N, such as 1/2, got {share!r}")
    return list(runs[int(number) - 1 :: int(count)])


def work(
    runs: Sequence[Settings],
    results: Path,
    run: Callable[[Settings], Path],
    *,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is not finished, and say so in a line per run.

    Args:
        runs: All runs, in order.
        results: Folder of results.
        run: Runs one and returns its results file.
        minutes: Start no run after so many minutes; None: run all.
        say: Gets the lines.

    Returns:
        Number of runs that failed.
    """
    clock, began, failed, in_a_row = Clock(), time.monotonic(), 0, 0
    for settings in runs:
        if finished(settings, results):
            clock.add(settings, summary_of(results / f"{settings.name}.jsonl")["seconds"])
    todo = [settings for settings in runs if not finished(settings, results)]
    say(f"{len(runs)} runs, {len(runs) - len(todo)} finished, {len(todo)} to do, about {clock.left(todo) / 60:.0f} min")
    for number, settings in enumerate(todo):
        if minutes is not None and time.monotonic() - began > minutes * 60:
            say(f"stopped after {minutes:g} minutes with {len(todo) - number} runs left")
            break
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
        seconds, left = time.monotonic() - start, todo[number + 1 :]
        clock.add(settings, summary["seconds"])  # without the time to start an engine or to make a policy
        proved = summary.get("verified")
        note = f", {proved['proved']}/{proved['episodes']} episodes proved" if proved else ""
        say(
            f"[{len(runs) - len(left)}/{len(runs)}] {settings.part}: {settings.name} {summary['start']:.2f} -> "
            f"{summary['end']:.2f}, {seconds:.0f} s{note}; {len(left)} left, about {clock.left(left) / 60:.0f} min"
        )
    return failed


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="All runs of the re-tokenisation experiment; finished ones are skipped."
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run, in order")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the main comparison (default: 5)")
    parser.add_argument("--sweep-seeds", type=int, default=1, help="seeds of the sweeps (default: 1)")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "retokenization", help="folder of results")
    parser.add_argument("--url", help="an engine with the policy's architecture; without it, one is started")
    parser.add_argument("--minutes", type=float, help="start no run after so many minutes")
    parser.add_argument("--steps", type=int, help="steps of every run, to try it out")
    parser.add_argument("--share", default="1/1", help="K/N: every N-th run from the K-th, for N queues on N cores")
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are finished")
    return parser.parse_args(arguments)


def main() -> None:
    """Run the queue."""
    options = options_of()
    runs = plan(options.parts, options.seeds, options.sweep_seeds)
    if options.steps:
        runs = [replace(settings, steps=options.steps) for settings in runs]
    runs = share_of(runs, options.share)
    if options.list:
        for settings in runs:
            print("done" if finished(settings, options.results) else "    ", settings.part, settings.name)
        return
    from train import quiet, train
    from warmup import ensure

    quiet()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with only_one(options.results, options.share):
        engine = Engine(options.url, options.results / f"engine-{options.share.replace('/', '-')}.log")

        def run(settings: Settings) -> Path:
            ensure(settings.policy)
            return train(settings, engine.url(settings), options.results)

        def say(line: str) -> None:
            print(line, flush=True)

        try:
            failed = work(runs, options.results, run, minutes=options.minutes, say=say)
        except KeyboardInterrupt:
            sys.exit("sweep.py: stopped; the same command continues with the run that was under way.")
        finally:
            engine.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
