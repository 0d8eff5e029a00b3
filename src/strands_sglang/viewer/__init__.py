"""The viewer of recorded runs: a local web page, or one HTML file. `view` opens it, `export_html` writes the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strands_sglang.viewer.command import view as view
    from strands_sglang.viewer.export import export_html as export_html

__all__ = ["view", "export_html"]

_HOMES = {"view": "strands_sglang.viewer.command", "export_html": "strands_sglang.viewer.export"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
