"""How an optional part is installed, in words that work.

Invariant: the name on the package index is another package, so no message names it alone: it is the repository's
address, or a checkout.
"""

from __future__ import annotations

SOURCE = "https://github.com/strands-sglang/strands-sglang"
"""Where this package comes from."""


def install(extra: str) -> str:
    """Return the command that installs this package with one of its extras ("ray", "progress", "arrow", ...)."""
    return f"pip install 'strands-sglang[{extra}] @ git+{SOURCE}', or pip install -e '.[{extra}]' in a checkout"
