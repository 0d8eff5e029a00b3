"""All branches of one episode: `TokenTree`.

A turn is prepared (which changes nothing), sampled by whoever asks the engine, and committed: whole, or not at
all.

Invariant: the prompt of every turn is exactly the branch before it, plus its closing and context tokens, checked at
commit against what was sent; a turn may be rejected and restored, nothing else about it ever changes; each sampled
token is trained at most once over all branches.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens.arrays import logprob_array, token_array
from strands_sglang.tokens.branches import branch_ends, counted_turns
from strands_sglang.tokens.prepared import PreparedTurn
from strands_sglang.tokens.record import plain_copy, read_record, record_of
from strands_sglang.tokens.trajectory import Trajectory, laid_flat
from strands_sglang.tokens.turn import Join, Turn, TurnPurpose, TurnStatus
from strands_sglang.tokens.turns import Turns
from strands_sglang.tokens.versions import VersionSpan, copied_spans


class TokenTree(Turns):
    """The turns of an episode and the branches they form. An empty tree is false, as any empty collection."""

    def prepare(
        self,
        parent: Turn | None,
        *,
        context: Iterable[int],
        closing: Iterable[int] = (),
        purpose: TurnPurpose = TurnPurpose.EPISODE,
        join: Join = Join.ROOT,
        forked_from: int | None = None,
        caller: tuple[int, str | None] | None = None,
    ) -> PreparedTurn:
        """Return the prompt of a turn behind `parent`. The tree does not change.

        Args:
            parent: The turn to go on from; None starts a branch.
            context: Tokens rendered from the template.
            closing: Tokens that close the parent's sampled turn; they come before `context`.
            purpose: What is sampled for.
            join: How the prompt was joined: ROOT or FORKED without a parent, anything but ROOT behind one.
            forked_from: Id of the turn whose history was rewritten into this branch.
            caller: Ids of the turn and the tool call from within which this branch is started.

        Raises:
            TreeError: A turn of another tree, something that is not a token id, a join that cannot be.
        """
        ends, new = token_array(closing, "closing"), token_array(context, "context")
        try:
            purpose, join = TurnPurpose(purpose), Join(join)
        except ValueError as error:
            raise TreeError(str(error)) from error
        self._check_place(parent, ends, join, forked_from, caller)
        ids = array("i") if parent is None else self.ids(parent)
        ids += ends
        ids += new
        return PreparedTurn(self, parent, ids, ends, new, purpose, join, forked_from, caller)

    def commit(
        self,
        prepared: PreparedTurn,
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        versions: Iterable[VersionSpan] = (),
        *,
        finish: str = "",
        prompt_tokens: int | None = None,
        detail: Mapping[str, Any] | None = None,
        status: TurnStatus = TurnStatus.KEPT,
    ) -> Turn:
        """Add a prepared turn with what was sampled for it, whole or not at all.

        Args:
            prepared: From `prepare` of this tree; commits once.
            token_ids: The sampled ids; may be empty.
            logprobs: One for each sampled id.
            versions: Spans of weight versions covering them; empty: one span of unknown version.
            finish: Why sampling ended, in the engine's word.
            prompt_tokens: The engine's count of the prompt, to be checked; None: it did not say.
            detail: Plain JSON data to keep with the turn; copied.
            status: What is known of its output: rejected, where it becomes part of a conversation only later, if at
                all; `restore` says that it has.

        Returns:
            The turn, now part of the tree.

        Raises:
            CountMismatchError: Ids, logprobs, version spans or prompt do not add up.
            TreeError: Not prepared here, committed before, changed since, or not token ids. After either error
                the tree is as it was.
        """
        parent = prepared.parent
        sampled, spans = token_array(token_ids, "sampled"), copied_spans(versions)
        turn = Turn(
            id=-1,
            parent=None if parent is None else parent.id,
            closing=token_array(prepared.closing, "closing"),
            context=token_array(prepared.context, "context"),
            sampled=sampled,
            logprobs=logprob_array(logprobs),
            versions=(VersionSpan(None, 0, len(sampled)),) if sampled and not spans else spans,
            start=0 if parent is None else parent.end,
            finish=plain_copy(finish or ""),
            purpose=prepared.purpose,
            status=TurnStatus(status),
            join=prepared.join,
            forked_from=prepared.forked_from,
            caller=prepared.caller,
            detail=plain_copy(dict(detail or {})),
        )
        with self._lock:
            if prepared.owner is not self:
                raise TreeError("the turn was prepared by another tree")
            if prepared.turn is not None:
                raise TreeError(f"the turn is already committed, as turn {prepared.turn.id}")
            self._check_place(parent, turn.closing, turn.join, turn.forked_from, turn.caller)
            flat = self._taken(parent)
            flat += turn.closing
            flat += turn.context
            if not isinstance(prepared.ids, array) or prepared.ids != flat:
                raise TreeError("the prompt was changed: it is not the branch so far, closing and context")
            if prompt_tokens is not None and prompt_tokens != len(flat):
                raise CountMismatchError(f"the engine counted {prompt_tokens} prompt tokens, {len(flat)} were sent")
            flat += turn.sampled
            turn.id = len(self._turns)
            self._add(turn)
            prepared.turn = turn
            self._keep(turn, flat)
        return turn

    def reject(self, turn: Turn) -> None:
        """Mark a turn whose output the agent threw away; it stays in the tree. Rejecting twice is rejecting once."""
        self._check_ours(turn)
        with self._lock:
            turn.status = TurnStatus.REJECTED
            self._flat.pop(turn.id, None)

    def restore(self, turn: Turn) -> None:
        """Take a rejection back: its output is part of a conversation after all."""
        self._check_ours(turn)
        with self._lock:
            turn.status = TurnStatus.KEPT

    def branches(self, *, purpose: TurnPurpose | None = TurnPurpose.EPISODE, rejected: bool = False) -> list[Turn]:
        """Return the last turn of each branch, in the order of commit.

        A branch ends at a turn that counts and has no turn that counts behind it: where the last turn was rejected
        the branch ends before it.

        Args:
            purpose: Which turns count; None: those of every purpose.
            rejected: Whether rejected turns count too.
        """
        turns = self.turns
        return branch_ends(turns, counted_turns(turns, purpose, rejected))

    def trajectories(
        self, *, purpose: TurnPurpose | None = TurnPurpose.EPISODE, rejected: bool = False
    ) -> list[Trajectory]:
        """Return every branch laid flat, so that each sampled token that counts is trained once over all of them.

        A turn that branches share has loss mask 1 in the first of them and 0 in the others; one that does not
        count has 0 wherever it is.

        Args:
            purpose: Which turns count; None: those of every purpose.
            rejected: Whether rejected turns count too.
        """
        turns = self.turns
        counted = counted_turns(turns, purpose, rejected)
        trajectories, main = [], self.main_leaf()
        for end in branch_ends(turns, counted):
            path = self.path(end)
            trajectories.append(laid_flat(self.id, path, counted, main=main is not None and end.id == main.id))
            counted.difference_update(turn.id for turn in path)
        return trajectories

    def main_leaf(self) -> Turn | None:
        """Return the last turn of the main branch; None when no turn counts.

        The last one that an agent of the task made itself; only where there is none, the last one of an agent that a
        tool called.
        """
        ends = self.branches()
        own = [end for end in ends if self.path(end)[0].caller is None]
        return max(own or ends, key=lambda end: end.id, default=None)

    def trajectory(self, leaf: Turn) -> Trajectory:
        """Return one branch laid flat, as if it were the only one: loss mask 1 on all it sampled and did not reject."""
        path = self.path(leaf)
        trained = {turn.id for turn in path if not turn.rejected}
        main = self.main_leaf()
        return laid_flat(self.id, path, trained, main=main is not None and leaf.id == main.id)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole tree as plain lists, numbers and strings; it comes back exactly."""
        return record_of(self.id, self.turns)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TokenTree:
        """Return the tree that `to_dict` wrote.

        Raises:
            RecordError: An unknown format, or turns that do not make a tree.
        """
        id, turns = read_record(data)
        tree = cls(id)
        for turn in turns:
            try:
                tree._add(turn)
            except TreeError as error:
                raise RecordError(f"turn {turn.id} is not part of this tree: {error}") from error
        return tree
