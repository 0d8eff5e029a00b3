"""All branches of one episode: `TokenTree`.

A turn is prepared (which changes nothing), sampled by the caller, and committed, as a whole or not at all. Every turn
stores only what it added. The branch ends committed last also cache their whole branch as one array, which passes to
the next turn: a step costs one copy of the history and work proportional to the new tokens. The branch of any other
turn is rebuilt on request.

Invariant: the prompt of every turn is exactly the branch before it plus its closing and context tokens, checked at
commit against what was sent. Turns are added, never removed; a turn may be rejected and restored, nothing else about it
ever changes. Each sampled token is trained at most once over all branches. Every selected turn (by purpose and status)
is on at least one branch, and every branch ends with one. Reading and adding from several threads is safe.
"""

from __future__ import annotations

import threading
import uuid
from array import array
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens.arrays import VersionSpan, copied_spans, logprob_array, token_array
from strands_sglang.tokens.images import ImageSpan, SpanData, copied_images
from strands_sglang.tokens.kept_sets import KeptSets
from strands_sglang.tokens.serialization import plain_copy, read_record, record_of
from strands_sglang.tokens.teacher import TeacherLogprobs
from strands_sglang.tokens.trajectory import Trajectory, branch_images, flatten_branch
from strands_sglang.tokens.turn import Join, PreparedTurn, Turn, TurnPurpose, TurnStatus

_TIPS_KEPT = 8  # tips whose branch is kept as one array


class TokenTree:
    """The turns of an episode and the branches they form. An empty tree is falsy, like any empty collection.

    Example:
        >>> tree = TokenTree()
        >>> first = tree.commit(tree.prepare(None, context=[1, 2]), [3, 4], [-0.1, -0.2])
        >>> second = tree.commit(tree.prepare(first, context=[5], join=Join.PROVED), [6], [-0.3])
        >>> tree.trajectory(second).loss_mask.tolist()
        [0, 0, 1, 1, 0, 1]
    """

    def __init__(self, id: str | None = None) -> None:
        self.id = uuid.uuid4().hex if id is None else id
        self.main: int | None = None
        """Id of a turn of the main branch, which gave the episode's answer; -1: none is certain; None: not determined,
        and then the only branch is the main one."""
        self.untrained_versions: frozenset[str | None] = frozenset()
        """Weight versions whose tokens have no loss, because they are too old."""
        self._turns: list[Turn] = []
        self._children: dict[int, list[int]] = {}
        self._rejected: set[int] = set()
        self._shows_images = False
        self._flat: dict[int, array[int]] = {}  # ids of whole branches by the id of their tip, newest last
        self._lock = threading.Lock()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Every turn so far, in commit order."""
        return tuple(self._turns)

    @property
    def rejected(self) -> frozenset[int]:
        """Ids of the turns whose output the agent discarded."""
        return frozenset(self._rejected)

    @property
    def has_images(self) -> bool:
        """Whether some turn has images."""
        return self._shows_images

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    def __getitem__(self, id: int) -> Turn:
        if not isinstance(id, int) or not 0 <= id < len(self._turns):
            raise TreeError(f"a turn id must be an int below {len(self._turns)}, got {id!r:.100}")
        return self._turns[id]

    def path(self, turn: Turn) -> list[Turn]:
        """Return the turns of the branch that ends with `turn`, first to last."""
        self._check_ours(turn)
        path = [turn]
        while path[-1].parent is not None:
            path.append(self._turns[path[-1].parent])
        return path[::-1]

    def ids(self, turn: Turn) -> array[int]:
        """Return a copy of all ids of the branch that ends with `turn`, including its sampled tokens."""
        self._check_ours(turn)
        with self._lock:
            flat = self._flat.get(turn.id)
            return self._branch_ids(turn) if flat is None else flat[:]

    def images(self, turn: Turn) -> list[ImageSpan]:
        """Return all images of the branch that ends with `turn`; positions count from the first token of the branch."""
        if not self._shows_images:
            self._check_ours(turn)
            return []
        return branch_images(self.path(turn))

    def children(self, turn: Turn) -> list[Turn]:
        """Return the turns that directly continue `turn`, in commit order."""
        self._check_ours(turn)
        with self._lock:
            return [self._turns[id] for id in self._children.get(turn.id, ())]

    def leaves(self) -> list[Turn]:
        """Return the turns without children, whatever their status and purpose, in commit order."""
        with self._lock:
            return [turn for turn in self._turns if turn.id not in self._children]

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            children = {id: list(ids) for id, ids in self._children.items()}
            own = {"_turns": list(self._turns), "_rejected": set(self._rejected), "_children": children}
            return {**self.__dict__, **own, "_flat": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

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
        images: Iterable[SpanData] = (),
    ) -> PreparedTurn:
        """Return the prompt of a turn after `parent`. The tree does not change.

        Args:
            parent: The turn to continue from; None starts a branch.
            context: Tokens rendered from the template.
            closing: Tokens that close the parent's sampled turn; they come before `context`.
            join: How the prompt was joined: ROOT or FORKED without a parent, anything but ROOT with one.
            forked_from: Id of the turn whose history was rewritten into this branch.
            caller: Ids of the turn and the tool call that start this branch.
            images: The images in `context`, in order; positions count from its first token (`images.expand`).

        Raises:
            TreeError: A turn of another tree, a value that is not a token id, or an impossible join.
        """
        closing_ids, context_ids = token_array(closing, "closing"), token_array(context, "context")
        try:
            purpose, join = TurnPurpose(purpose), Join(join)
        except ValueError as error:
            raise TreeError(str(error)) from error
        self._check_place(parent, closing_ids, join, forked_from, caller)
        ids = array("i") if parent is None else self.ids(parent)
        ids += closing_ids
        ids += context_ids
        prepared = PreparedTurn(self, parent, ids, closing_ids, context_ids, purpose, join, forked_from, caller)
        prepared.new_images = copied_images(images, context_ids)
        if prepared.new_images or (parent is not None and self._shows_images):
            before, base = [] if parent is None else self.images(parent), len(ids) - len(context_ids)
            prepared.images = (*before, *(image.moved(base) for image in prepared.new_images))
        return prepared

    def commit(
        self,
        prepared: PreparedTurn,
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        versions: Iterable[VersionSpan] = (),
        *,
        finish_reason: str = "",
        prompt_tokens: int | None = None,
        detail: Mapping[str, Any] | None = None,
        status: TurnStatus = TurnStatus.KEPT,
        kept: KeptSets | None = None,
    ) -> Turn:
        """Add a prepared turn with what was sampled for it, as a whole or not at all: an error changes nothing.

        Args:
            prepared: From `prepare` of this tree; commits once.
            token_ids: The sampled ids; may be empty.
            logprobs: One for each sampled id.
            versions: Spans of weight versions that cover them; empty: one span of unknown version.
            finish_reason: Why the engine stopped, as the value of a `FinishReason`.
            prompt_tokens: The engine's count of the prompt, which is checked; None: not reported.
            detail: Plain JSON data to store with the turn; copied.
            status: REJECTED if the output becomes part of a conversation only later, if at all; `restore` keeps it
                then.
            kept: The kept set of each sampled token; None: sampling has none, or they were not requested.

        Raises:
            CountMismatchError: Ids, logprobs, version spans, prompt or kept sets do not match.
            TreeError: The turn was not prepared here, was committed before or changed since, or a value is no token id.
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
            finish_reason=plain_copy(finish_reason or ""),
            purpose=prepared.purpose,
            status=TurnStatus(status),
            join=prepared.join,
            forked_from=prepared.forked_from,
            caller=prepared.caller,
            detail=plain_copy(dict(detail or {})),
        )
        if kept is not None:
            kept.check_members(sampled)
            turn.kept = kept
        if prepared.new_images:
            turn.images = copied_images(prepared.new_images, turn.context)
        with self._lock:
            if prepared.owner is not self:
                raise TreeError("the turn was prepared by another tree")
            if prepared.turn is not None:
                raise TreeError(f"the turn is already committed, as turn {prepared.turn.id}")
            self._check_place(parent, turn.closing, turn.join, turn.forked_from, turn.caller)
            flat = self._take_branch_ids(parent)
            flat += turn.closing
            flat += turn.context
            if not isinstance(prepared.ids, array) or prepared.ids != flat:
                raise TreeError("the prepared ids were changed: they must be the branch so far, closing and context")
            if prompt_tokens is not None and prompt_tokens != len(flat):
                raise CountMismatchError(f"the engine counted {prompt_tokens} prompt tokens, {len(flat)} were sent")
            flat += turn.sampled
            turn.id = len(self._turns)
            self._add(turn)
            prepared.turn = turn
            self._keep(turn, flat)
        return turn

    def reject(self, turn: Turn) -> None:
        """Mark a turn whose output the agent discarded; it stays in the tree. Rejecting it again has no effect."""
        self._check_ours(turn)
        with self._lock:
            turn.status = TurnStatus.REJECTED
            self._rejected.add(turn.id)
            self._flat.pop(turn.id, None)

    def restore(self, turn: Turn) -> None:
        """Undo a rejection: the output is part of a conversation after all."""
        self._check_ours(turn)
        with self._lock:
            turn.status = TurnStatus.KEPT
            self._rejected.discard(turn.id)

    def set_teacher(self, turn: Turn, scores: TeacherLogprobs) -> None:
        """Set a teacher's logprobs, one per sampled token (or CountMismatchError), in place of earlier ones."""
        self._check_ours(turn)
        if len(scores) != len(turn.sampled):
            raise CountMismatchError(f"{len(turn.sampled)} sampled tokens but {len(scores)} logprobs of a teacher")
        turn.teacher = scores

    def branches(self, *, purpose: TurnPurpose | None = TurnPurpose.EPISODE, rejected: bool = False) -> list[Turn]:
        """Return the last turn of each branch, in commit order.

        A branch ends at a turn that counts and has no later turn that counts: if the last turn was rejected, the branch
        ends before it.

        Args:
            purpose: Which turns count; None: those of every purpose.
            rejected: Whether rejected turns count too.
        """
        turns = self.turns
        return branch_ends(turns, selected_turns(turns, purpose, rejected))

    def trajectories(
        self, *, purpose: TurnPurpose | None = TurnPurpose.EPISODE, rejected: bool = False
    ) -> list[Trajectory]:
        """Return every branch as a trajectory, so that each sampled token that counts is trained once over all of them.

        A turn that several branches share has loss mask 1 in the first of them and 0 in the others. A turn that does
        not count has loss mask 0 everywhere. Which turns count: as for `branches`.
        """
        turns = self.turns
        counted = selected_turns(turns, purpose, rejected)
        trajectories, main = [], self.main_leaf()
        for end in branch_ends(turns, counted):
            path = self.path(end)
            trajectories.append(self._flat_path(path, counted, main=main is not None and end.id == main.id))
            counted.difference_update(turn.id for turn in path)
        return trajectories

    def main_leaf(self) -> Turn | None:
        """Return the last turn of the main branch, or None if none is certain: that of `main`, else the only one.

        Branches that a tool call started are none of these unless `main` is in one. Of a turn that does not count, the
        last one before it that counts is taken; of several branches that share a turn, the first, which trains it.
        """
        ends = self.branches()
        if self.main is None:
            ends = [end for end in ends if self.path(end)[0].caller is None]
            return ends[0] if len(ends) == 1 else None
        counted = selected_turns(self.turns, TurnPurpose.EPISODE, rejected=False)
        path = [] if self.main < 0 else self.path(self[self.main])
        last = next((turn for turn in reversed(path) if turn.id in counted), None)
        return next((end for end in ends if last in self.path(end)), None)

    def trajectory(self, leaf: Turn) -> Trajectory:
        """Return one branch as if it were the only one: loss mask 1 on everything it sampled and did not reject."""
        path = self.path(leaf)
        trained = {turn.id for turn in path if not turn.rejected}
        main = self.main_leaf()
        return self._flat_path(path, trained, main=main is not None and leaf.id == main.id)

    def _flat_path(self, path: Sequence[Turn], trained: Container[int], *, main: bool) -> Trajectory:
        return flatten_branch(self.id, path, trained, main=main, untrained_versions=self.untrained_versions)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole tree as plain lists, numbers and strings, which `from_dict` reads back exactly."""
        return record_of(self.id, self.turns, self.main)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TokenTree:
        """Return the tree that `to_dict` wrote; RecordError if the format is unknown, or it is no tree."""
        id, turns, main = read_record(data)
        tree = cls(id)
        tree.main = main
        for turn in turns:
            try:
                tree._add(turn)
            except TreeError as error:
                raise RecordError(f"turn {turn.id} is not part of this tree: {error}") from error
        return tree

    # Called with the lock held.

    def _add(self, turn: Turn) -> None:
        parent = None if turn.parent is None else self[turn.parent]
        self._check_place(parent, turn.closing, turn.join, turn.forked_from, turn.caller)
        start = 0 if parent is None else parent.end
        if (turn.id, turn.start) != (len(self._turns), start):
            raise TreeError(f"the next turn must be {len(self._turns)} at {start}, got {turn.id} at {turn.start}")
        self._turns.append(turn)
        if turn.images:
            self._shows_images = True
        if turn.rejected:
            self._rejected.add(turn.id)
        if parent is not None:
            self._children.setdefault(parent.id, []).append(turn.id)

    def _take_branch_ids(self, parent: Turn | None) -> array[int]:
        """Return the ids after which a turn is added; they are no longer kept for the parent."""
        if parent is None:
            return array("i")
        flat = self._flat.pop(parent.id, None)
        return self._branch_ids(parent) if flat is None else flat

    def _keep(self, tip: Turn, flat: array[int]) -> None:
        self._flat[tip.id] = flat
        if len(self._flat) > _TIPS_KEPT:
            del self._flat[next(iter(self._flat))]

    def _branch_ids(self, turn: Turn) -> array[int]:
        ids = array("i")
        for one in self.path(turn):
            ids += one.closing
            ids += one.context
            ids += one.sampled
        return ids

    def _check_ours(self, turn: Turn) -> None:
        if not 0 <= turn.id < len(self._turns) or self._turns[turn.id] is not turn:
            raise TreeError(f"turn {turn.id} is not a turn of this tree")

    def _check_place(
        self,
        parent: Turn | None,
        closing: array[int],
        join: Join,
        forked_from: int | None,
        caller: tuple[int, str | None] | None,
    ) -> None:
        if parent is None:
            if closing:
                raise TreeError("closing tokens must be empty without a parent turn to close")
            if join not in (Join.ROOT, Join.FORKED):
                raise TreeError(f"join must be 'root' or 'forked' without a parent, got {join.value!r}")
        else:
            self._check_ours(parent)
            if join is Join.ROOT:
                raise TreeError(f"join must be 'proved', 'kept' or 'forked' after turn {parent.id}, got 'root'")
        if forked_from is not None:
            self[forked_from]
        if caller is not None:
            if not isinstance(caller, tuple) or len(caller) != 2 or not isinstance(caller[1], str | None):
                raise TreeError(f"caller must be (turn id, tool call id or None), got {caller!r:.100}")
            self[caller[0]]


def selected_turns(turns: Sequence[Turn], purpose: TurnPurpose | None, rejected: bool) -> set[int]:
    """Return the ids of the turns that count; `purpose` None: every purpose, `rejected`: discarded ones too."""
    return {
        turn.id for turn in turns if (purpose is None or turn.purpose == purpose) and (rejected or not turn.rejected)
    }


def branch_ends(turns: Sequence[Turn], counted: Collection[int]) -> list[Turn]:
    """Return the turns that count and have no later turn that counts on their branch, in order of their ids."""
    passed: set[int] = set()
    ends = []
    for turn in reversed(turns):  # children come after their parents, so each is seen before its parent
        if turn.id in counted and turn.id not in passed:
            ends.append(turn)
        if turn.parent is not None and (turn.id in counted or turn.id in passed):
            passed.add(turn.parent)
    return ends[::-1]
