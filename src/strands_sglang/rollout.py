"""`import strands_sglang.rollout`: the published package has a module of this name, here it is the function `rollout`.

Importing a submodule sets an attribute of the package. The module therefore replaces itself by the function, which has
the published module's names as attributes: `from strands_sglang.rollout import Rollout` works, and
`strands_sglang.rollout` is one thing, whatever was imported before.
"""

import sys

from strands_sglang.published.rollout_record import Rollout
from strands_sglang.runs.runner import rollout

__all__ = ["Rollout", "rollout"]

rollout.Rollout = Rollout  # type: ignore[attr-defined]
rollout.rollout = rollout  # type: ignore[attr-defined]
sys.modules[__name__] = rollout  # type: ignore[assignment]
