"""Run any Strands agent on SGLang and get training-ready, token-exact trajectories.

`_public` lists the names of this package, `published` those that earlier packages of this name had. Both are imported
when a name is first used, so that `import strands_sglang` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from strands_sglang import errors as errors
from strands_sglang import published as _published
from strands_sglang._version import __version__ as __version__

if TYPE_CHECKING:
    from strands_sglang._public import *  # noqa: F403
    from strands_sglang.published.names import *  # noqa: F403


def _names_in(module: str) -> dict[str, Any]:
    found = vars(import_module(f"{__name__}.{module}"))
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _imported(name: str) -> Any:
    if name in _published.MODULES:
        return _published
    if name == "__all__":
        return ["__version__", *_names_in("_public")]
    if not name.startswith("_"):
        for module in ("_public", "published.names"):
            if name in (names := _names_in(module)):
                globals()[name] = names[name]
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_names_in("_public"), *_names_in("published.names")})


if not TYPE_CHECKING:  # With a `__getattr__` in sight, a type checker accepts every misspelt name.
    __getattr__ = _imported

for _module in _published.MODULES:
    sys.modules[f"{__name__}.{_module}"] = _published
