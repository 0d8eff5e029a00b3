"""Reports an SDK that an adaptation does not recognise: `report_unrecognised`.

Invariant: each adaptation is reported at most once per process.
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
