"""How many examples hypothesis tries: a quarter in the suite, all of them in a soak.

STRANDS_SGLANG_SOAK=1 pytest tests/tool_parsers
"""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """Return the number of examples of a property test that was tried with `count` of them.

    A failure that was found once is in hypothesis' database, and is tried again first.
    """
    return count if os.environ.get("STRANDS_SGLANG_SOAK") else max(count // 4, 50)
