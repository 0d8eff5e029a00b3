"""CPU per request of `SGLangClient`, beside a bare aiohttp client and the published package, in one run.

    python bench/client.py [--quick] [--no-published]

One loopback server runs in a process of its own, our client and the bare one in another, the published package in a
third, with its own environment from the package index (in the cache). They take turns in many short rounds, the server
kept on one CPU and the clients on another; a ratio is taken within each round, where what else the machine does hits
all alike, and the median over the rounds is shown.

Prints a table, then one JSON line with `ours_over_bare` and `ours_over_published`: a map from shape to ratio, over all
rounds at every concurrency, and the figures of each row of the table under `cells`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import venv
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from loopback import SHAPES, Shape

HERE = Path(__file__).resolve().parent
PUBLISHED = "strands-sglang==0.4.3"
CONCURRENCY = (1, 64, 512)


@dataclass
class Cell:
    """One shape at one concurrency: CPU seconds per request of each client, a figure a round."""

    shape: Shape
    concurrency: int
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def typical(self, kind: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.cpu[kind])

    def ratios(self, over: str) -> list[float]:
        """Return our cost over another client's, in each round."""
        return [ours / other for ours, other in zip(self.cpu["ours"], self.cpu[over], strict=True)]

    def ratio(self, over: str) -> float:
        """Return our cost over another client's: the median of the rounds."""
        return statistics.median(self.ratios(over))


class Environment:
    """A process with one environment's clients."""

    def __init__(self, kinds: list[str], python: str, ports: list[int]) -> None:
        self.kinds = kinds
        command = [python, str(HERE / "contender.py"), ",".join(kinds), json.dumps(ports), "1"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE
        )
        # What a client logs is kept for when it dies, and its pipe must not fill up.
        self._said: deque[str] = deque(maxlen=20)
        threading.Thread(target=self._listen, daemon=True).start()
        self._read_until_ready()

    def _read_until_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        self._give_up("did not start")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._said.extend(self._process.stderr)

    def _give_up(self, what: str) -> NoReturn:
        self._process.wait()
        raise SystemExit(f"the process of {' and '.join(self.kinds)} {what}:\n{''.join(self._said)}")

    def run(self, kind: str, shape: int, concurrency: int, count: int) -> float:
        """Return the CPU seconds of one request of a client, over `count` of them."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"kind": kind, "shape": shape, "concurrency": concurrency, "count": count}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._give_up("died")
        return float(json.loads(line)) / count

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


def published_python() -> str:
    """Return the python of an environment with the published package, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strands-sglang" / "bench"
    folder = cache / PUBLISHED.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print(f"installing {PUBLISHED} into {folder} (once, about a minute)", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PUBLISHED], check=True)
        (folder / "complete").touch()
    return str(python)


def measure(environments: list[Environment], *, rounds: int, scale: float) -> list[Cell]:
    """Run every shape at every concurrency, the clients taking turns."""
    clients = [(environment, kind) for environment in environments for kind in environment.kinds]
    cells = []
    for index, shape in enumerate(SHAPES):
        for concurrency in CONCURRENCY:
            cell = Cell(shape, concurrency, {kind: [] for _, kind in clients})
            # About the same work in each cell; never fewer requests than run at once.
            count = max(concurrency, int(scale * 1_000_000 / (shape.prompt_tokens + 12 * shape.output_tokens + 3_000)))
            for environment, kind in clients:  # open the connections, warm the caches
                environment.run(kind, index, concurrency, max(concurrency, count))
            for number in range(rounds):
                for environment, kind in clients if number % 2 else clients[::-1]:
                    cell.cpu[kind].append(environment.run(kind, index, concurrency, count))
            print(_row(cell), flush=True)
            cells.append(cell)
    return cells


def _row(cell: Cell) -> str:
    costs = "".join(f"{cell.typical(kind) * 1e3:>11.3f}" for kind in cell.cpu)
    ratios = "".join(f"{cell.ratio(kind):>11.2f}" for kind in cell.cpu if kind != "ours")
    return f"{cell.shape.name:>10}{cell.concurrency:>6}{costs}{ratios}"


def summary(cells: list[Cell], over: str) -> dict[str, float]:
    """Return, for each shape, our cost over another client's: the median of all its rounds, at every concurrency."""
    ratios: dict[str, list[float]] = {}
    for cell in cells:
        ratios.setdefault(cell.shape.name, []).extend(cell.ratios(over))
    return {name: round(statistics.median(values), 3) for name, values in ratios.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: a smoke test")
    parser.add_argument("--no-published", action="store_true", help="leave the published package out")
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, str(HERE / "loopback.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stdin is not None
    ports = json.loads(server.stdout.readline())
    environments = [Environment(["ours", "bare"], sys.executable, ports)]
    if not options.no_published:
        environments.append(Environment(["published"], published_python(), ports))
    kinds = [kind for environment in environments for kind in environment.kinds]
    print("CPU of the client process, milliseconds a request (lower is better)")
    heads = "".join(f"{kind:>11}" for kind in kinds) + "".join(f"{'/' + kind:>11}" for kind in kinds[1:])
    print(f"{'in/out':>10}{'conc':>6}{heads}", flush=True)
    try:
        cells = measure(environments, rounds=3 if options.quick else 20, scale=0.2 if options.quick else 1.0)
    finally:
        for environment in environments:
            environment.close()
        server.stdin.close()
        server.wait(timeout=10)
    result: dict[str, object] = {f"ours_over_{kind}": summary(cells, kind) for kind in kinds[1:]}
    result["cells"] = [
        {
            "shape": c.shape.name,
            "concurrency": c.concurrency,
            **{f"{k}_ms": round(c.typical(k) * 1e3, 4) for k in c.cpu},
        }
        for c in cells
    ]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
