"""Adaptations that depend on internals of the Strands SDK.

`agents` finds the calling agent and enables structured output, `fast_agents` runs agents without recursion and repeated
work, `logs` drops records of intended ends, `middleware` allows a tool to be left running, `tool_servers` knows why an
MCP server gave no answer. `report_unrecognised` reports, once per process, an adaptation that does not recognise the
SDK.

Invariants: importing this package, making a model and running a plain agent change nothing in the SDK; only the block
`fast_agents` does, and restores it. No other module of this package reads or replaces anything that the SDK does not
document. Each adaptation checks that the SDK looks as expected; if it does not, the adaptation is not applied, which is
logged once and costs speed or comfort, never exactness. `tests/strands_compat/` has a canary for each: a test that
fails when the SDK changes, and says what to check.

All were written for and tested with strands-agents 1.62.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

logger = logging.getLogger(__name__)

_reported: set[str] = set()


def report_unrecognised(adaptation: str, effect: str) -> None:
    """Log that an adaptation is not applied because the SDK is not as expected.

    Args:
        adaptation: Name of the adaptation.
        effect: What the user loses.
    """
    if adaptation in _reported:
        return
    _reported.add(adaptation)
    try:
        installed = version("strands-agents")
    except PackageNotFoundError:
        installed = "unknown"
    logger.warning(
        "adaptation=<%s>, strands_agents=<%s> | not applied, the SDK is not as expected: %s",
        adaptation,
        installed,
        effect,
    )
