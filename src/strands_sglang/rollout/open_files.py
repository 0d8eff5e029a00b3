"""How many connections and files this process may have open.

Many systems allow 1,024 until asked for more; each request under way is one. Nothing is asked for that the system
does not grant to every process.
"""

from __future__ import annotations

import logging

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_BESIDES = 512  # what else a process has open


def allow_open_files(count: int) -> None:
    """Raise the limit of open files, if need be, so that `count` connections fit."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError) as error:
        granted = soft
        logger.debug("limit=<%d>, error=<%s> | the limit of open files stays", soft, error)
    if granted < wanted:
        logger.warning("limit=<%d>, wanted=<%d> | open files are limited: raise `ulimit -n`", granted, wanted)
