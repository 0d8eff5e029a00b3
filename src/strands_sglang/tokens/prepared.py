"""A turn that is about to be sampled: `PreparedTurn`.

Invariant: preparing changes nothing. A prepared turn that is never committed leaves no trace; one that is
committed becomes exactly one turn.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from strands_sglang.tokens.turn import Join, Turn, TurnPurpose


@dataclass(slots=True, eq=False)
class PreparedTurn:
    """A prompt to send, and where in the tree its answer belongs. Made by `TokenTree.prepare`; not to be changed."""

    owner: object
    """The tree it was prepared by, and the only one that will commit it."""
    parent: Turn | None
    """The turn it goes on from; None: it starts a branch."""
    ids: array[int]
    """The prompt to send: the whole branch so far, `closing`, `context` (32-bit). Checked again at commit, and not
    changed by it."""
    closing: array[int]
    """Tokens that close the parent's sampled turn."""
    context: array[int]
    """Tokens rendered from the template, behind `closing`."""
    purpose: TurnPurpose
    """What is sampled for."""
    join: Join
    """How the prompt was joined to the branch."""
    forked_from: int | None
    """Id of the turn whose history was rewritten into this branch; None: nothing was rewritten."""
    caller: tuple[int, str | None] | None
    """Turn and tool call from within which this branch is started; None: from outside."""
    turn: Turn | None = None
    """What it became; None until it is committed."""

    def __len__(self) -> int:
        """Return the number of tokens of the prompt."""
        return len(self.ids)
