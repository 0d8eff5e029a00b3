"""Install commands of optional dependencies, for error messages.

Invariant: the name on the package index belongs to another package, so a command always names the repository or a
checkout.
"""

from __future__ import annotations

SOURCE = "https://github.com/strands-sglang/strands-sglang"
"""Repository of this package."""


def install(extra: str) -> str:
    """Return the command that installs this package with one of its extras ("ray", "progress", "arrow", ...).

    Example:
        >>> install("ray").startswith("pip install 'strands-sglang[ray] @ git+https://")
        True
    """
    return f"pip install 'strands-sglang[{extra}] @ git+{SOURCE}', or pip install -e '.[{extra}]' in a checkout"
