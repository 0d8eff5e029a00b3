"""Compares the CPU time per request of `SGLangClient`, a bare aiohttp client, and the published package.

    python bench/client.py [--quick] [--no-published]

The loopback server runs in its own process, our client and the bare client in another, the published package in a
third. The published package needs Python 3.12 and has the same import name: both get environments with the same
versions of everything else, installed from the package index and kept in the cache. Without them it is left out. The
clients alternate in many short
rounds, with the server pinned to one CPU and the clients to another. Ratios are computed within each round, because
other load on the machine affects all clients of a round equally; the median over the rounds is shown.

Prints a table, then one JSON line: `ours_over_bare` and `ours_over_published` map each shape to its ratio over all
rounds and concurrencies, and `cells` has the numbers of each row of the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from loopback import SHAPES, Shape
from suite import environments

HERE = Path(__file__).resolve().parent
CONCURRENCY = (1, 64, 512)


@dataclass
class Cell:
    """One shape at one concurrency: CPU seconds per request of each client, one number per round."""

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


class Contender:
    """A process that runs the clients of one environment."""

    def __init__(self, kinds: list[str], environment: environments.Environment, ports: list[int]) -> None:
        self.kinds = kinds
        command = [environment.python, str(HERE / "contender.py"), ",".join(kinds), json.dumps(ports), "1"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
            env=environment.variables(),
        )
        # Read the log of the clients, so that the pipe does not fill up; it is shown if the process dies.
        self._log: deque[str] = deque(maxlen=20)
        threading.Thread(target=self._read_log, daemon=True).start()
        self._read_until_ready()

    def _read_until_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "ready":
                return
        self._fail("did not start")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)

    def _fail(self, what: str) -> NoReturn:
        self._process.wait()
        raise SystemExit(f"the process of {' and '.join(self.kinds)} {what}:\n{''.join(self._log)}")

    def run(self, kind: str, shape: int, concurrency: int, count: int) -> float:
        """Return the mean CPU seconds of a request of a client, over `count` requests."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"kind": kind, "shape": shape, "concurrency": concurrency, "count": count}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._fail("died")
        return float(json.loads(line)) / count

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


def measure(contenders: list[Contender], *, rounds: int, scale: float) -> list[Cell]:
    """Measure every shape at every concurrency, with alternating clients."""
    clients = [(contender, kind) for contender in contenders for kind in contender.kinds]
    cells = []
    for index, shape in enumerate(SHAPES):
        for concurrency in CONCURRENCY:
            cell = Cell(shape, concurrency, {kind: [] for _, kind in clients})
            # About the same work in each cell, and at least as many requests as the concurrency.
            count = max(concurrency, int(scale * 1_000_000 / (shape.prompt_tokens + 12 * shape.output_tokens + 3_000)))
            for contender, kind in clients:  # open the connections, warm the caches
                contender.run(kind, index, concurrency, max(concurrency, count))
            for number in range(rounds):
                for contender, kind in clients if number % 2 else clients[::-1]:
                    cell.cpu[kind].append(contender.run(kind, index, concurrency, count))
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
    parser.add_argument("--no-published", action="store_true", help="do not measure the published package")
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, str(HERE / "loopback.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stdin is not None
    ports = json.loads(server.stdout.readline())
    ours, theirs = environments.own(), None
    if not options.no_published:
        try:
            ours, theirs = environments.beside_published(install=True), environments.published(install=True)
        except environments.Unavailable as error:
            print(f"left out: the published package: {error}")
    contenders = [Contender(["ours", "bare"], ours, ports)]
    if theirs is not None:
        contenders.append(Contender(["published"], theirs, ports))
    kinds = [kind for contender in contenders for kind in contender.kinds]
    print("CPU milliseconds per request of the client process (lower is better)")
    heads = "".join(f"{kind:>11}" for kind in kinds) + "".join(f"{'/' + kind:>11}" for kind in kinds[1:])
    print(f"{'in/out':>10}{'conc':>6}{heads}", flush=True)
    try:
        cells = measure(contenders, rounds=3 if options.quick else 20, scale=0.2 if options.quick else 1.0)
    finally:
        for contender in contenders:
            contender.close()
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
