"""Processes that write a ledger until they are killed, and say what was confirmed to them.

python -m ledger.killed     each line "DIRECTORY CONFIRMED SEED DURABILITY" starts one; its process id is printed
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from strands_sglang.ledger.writer import Durability, LedgerWriter
from support.ledger.episodes import Recorder

DIGEST = 16


def write_on(directory: Path, confirmed: Path, seed: int, durability: Durability) -> None:
    """Record episodes for ever; append the digest of the last event that was confirmed to a file, each time."""
    told = os.open(confirmed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writer = LedgerWriter(directory, durability=durability, flush_seconds=0.002, shard_bytes=60_000)

    async def record(worker: int) -> None:
        rng = random.Random(f"{seed}-{worker}")
        for number in range(10**9):
            recorder = Recorder(writer.write, task=f"{worker}-{number}")
            turn = None
            for _ in range(rng.randrange(1, 6)):
                context = [rng.randrange(150_000) for _ in range(rng.randrange(1, 60))]
                turn = recorder.call(turn, context=context, sampled=[rng.randrange(150_000) for _ in range(20)])
                if rng.random() < 0.5:
                    event = recorder.events[-1]
                    await writer.flushed()
                    os.write(told, event.digest)
                await asyncio.sleep(0)
            recorder.reward()
            event = recorder.end()
            await writer.flushed()
            os.write(told, event.digest)

    async def all_of_them() -> None:
        await asyncio.gather(*(record(worker) for worker in range(4)))

    asyncio.run(all_of_them())


def main() -> None:
    """Start a process for each line: a fork, which has not to import everything again."""
    for line in sys.stdin:
        directory, confirmed, seed, durability = line.split()
        child = os.fork()
        if not child:
            write_on(Path(directory), Path(confirmed), int(seed), Durability(durability))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
