"""Checks of this machine: open files, the Python sandbox, Ray.

Invariant: nothing is started that outlives the check; Ray is not initialised.
"""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from strands_sglang._checks import install
from strands_sglang.errors import SandboxUnavailableError
from strands_sglang.runs.checks.server import release
from strands_sglang.runs.checks.setup import Finding, Setup, failed, passed, skipped, warned
from strands_sglang.runs.workers import process_tuning

_OLDEST_RAY = (2, 31)


async def open_files(setup: Setup) -> Finding:
    """Check that this process may open enough connections."""
    limit = process_tuning.open_files(setup.concurrency)
    if limit is None:
        return passed("this system has no such limit")
    needs = f"{limit.needed} needed for {setup.concurrency} episodes at the same time"
    if limit.soft >= limit.needed:
        return passed(f"{limit.soft:g} allowed, {needs}")
    if limit.hard >= limit.needed:
        return passed(f"{limit.soft:g} allowed, {needs}: a run raises the limit itself (up to {limit.hard:g})")
    return failed(
        f"{limit.hard:g} allowed at most, {needs}",
        f"raise the limit: `ulimit -n {limit.needed}` as root, LimitNOFILE= in a systemd unit, or --ulimit nofile= of "
        f"docker run; or use concurrency={max(1, int(limit.hard) - (limit.needed - setup.concurrency))} or less",
    )


async def sandbox(setup: Setup) -> Finding:
    """Check that model-written Python code can be run in the sandbox."""
    from strands_sglang.tools import PythonSandbox, SandboxLimits

    try:
        place = await asyncio.to_thread(PythonSandbox, limits=SandboxLimits(seconds=min(10.0, setup.seconds / 2)))
        result = await place.run("print(6 * 7)")
    except SandboxUnavailableError as error:
        return warned(
            str(error),
            "only needed for python_sandbox: apt-get install bubblewrap (or dnf, conda-forge), and allow unprivileged "
            "user namespaces; docs/sandbox.md explains containers and clusters",
        )
    if result.text.strip() != "42":
        return warned(
            f"code runs, but prints {result.text.strip()!r:.100}",
            "the Python of this environment does not work inside bubblewrap: pass python= to PythonSandbox",
        )
    return passed(f"bubblewrap works ({place.privileges.value}), {result.seconds * 1000:.0f} ms per call")


async def ray(setup: Setup) -> Finding:
    """Check that Ray is installed, if it is used."""
    try:
        found = version("ray") if find_spec("ray") is not None else None
    except PackageNotFoundError:
        found = None
    if found is None:
        if not setup.workers:
            return skipped("not installed; only needed for rollout(workers=N)")
        return failed(f"not installed, but workers={setup.workers}", install("ray"))
    if release(found) < _OLDEST_RAY:
        return warned(f"Ray {found}", f"Ray {'.'.join(map(str, _OLDEST_RAY))} or newer is needed: {install('ray')}")
    address = os.environ.get("RAY_ADDRESS")
    where = f"cluster {address}" if address else "a local cluster is started when a run needs it"
    return passed(f"Ray {found}, {where}")
