"""How code is kept apart from the host: `Isolation`.

Invariant: nobody gets less than they asked for without having said so in as many words.
"""

from __future__ import annotations

from enum import Enum


class Isolation(str, Enum):
    """How code is kept apart from the host."""

    BUBBLEWRAP = "bubblewrap"
    """In namespaces of its own, made by bubblewrap."""
    NONE_RUNS_AS_ME = "none_runs_as_me"
    """Not at all: model-written code runs with all your rights. For code you would run yourself."""


class Rights(str, Enum):
    """Whose rights bubblewrap is started with."""

    ROOT = "root"
    """Root's: it makes the namespaces, then the code becomes a user that nobody else is."""
    USER = "user"
    """An ordinary user's, in a user namespace."""
    NOBODY = "nobody"
    """Root gives up its rights first and starts it as nobody, in a user namespace: for root without CAP_SYS_ADMIN."""
    USER_IN_CONTAINER = "user_in_container"
    """As USER, where `/proc/sys` is read-only: the system call filter alone sees to it that no further user namespace
    is made inside."""
    NOBODY_IN_CONTAINER = "nobody_in_container"
    """As NOBODY, likewise."""
