"""Appends events to the episodes of a finished run: `appending`.

Invariant: no recorded event is changed or removed, and no other process uses the directory meanwhile. A ledger that no
longer matches its seal is not sealed again; one that does is sealed with the new events, also if appending failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from strands_sglang.errors import LedgerError
from strands_sglang.ledger.seal import SealFault, check_seal, read_seal, seal
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.resume import directory_lock

_WORKERS = ("score", "teacher")
"""Names of the writers that append to finished runs; the files they write begin with them."""


@asynccontextmanager
async def appending(folder: Path, worker: str) -> AsyncIterator[LedgerWriter]:
    """Lock a run, yield a writer of further events, and seal it again; LedgerError if it does not match its seal."""
    loop = asyncio.get_running_loop()
    with directory_lock(folder):
        sealed = await loop.run_in_executor(None, _must_seal, folder)
        try:
            with LedgerWriter(folder, worker=worker) as writer:
                yield writer
        finally:  # seal the new events even if something failed
            if sealed:
                await loop.run_in_executor(None, seal, folder)


def _must_seal(folder: Path) -> bool:
    """Return whether the run must be sealed afterwards; raise LedgerError if its files do not match its seal."""
    if read_seal(folder) is None:
        return False
    faults = check_seal(folder)
    new = [fault for fault in faults if fault.kind is SealFault.NEW]
    if len(new) == len(faults):
        # New files of a resumed run are sealed by that run. New files of an interrupted call of ours are sealed now.
        return all(fault.shard.startswith(tuple(f"{name}-" for name in _WORKERS)) for fault in new)
    if faults := [fault for fault in faults if fault not in new]:
        raise LedgerError(
            f"{faults[0].shard}: {faults[0].message}. The run in {folder} does not match its seal and is not sealed "
            f"again: run `strands-sglang verify {folder}` for details"
        )
    return True
