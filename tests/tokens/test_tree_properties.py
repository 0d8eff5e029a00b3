"""Whatever is done to a tree, in whatever order: every invariant holds, measured against plain lists.

The model beside the tree knows nothing of it: for each turn a `Known`, with its whole branch as one list of
(token, turn, origin, offset within what the turn sampled; None: not sampled).
"""

from __future__ import annotations

import copy
import pickle
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strands_sglang.errors import CountMismatchError, TreeError
from strands_sglang.tokens import (
    Join,
    Origin,
    PreparedTurn,
    TokenManager,
    TokenTree,
    Trajectory,
    Turn,
    TurnPurpose,
    VersionSpan,
)
from support.examples import size

Place: TypeAlias = tuple[int, int, Origin, int | None]

tokens = st.integers(0, 5)
runs = st.lists(tokens, max_size=4)
purposes = st.sampled_from([TurnPurpose.EPISODE, TurnPurpose.EPISODE, TurnPurpose.EPISODE, TurnPurpose.SIDE])
logprobs = st.floats(-20, 0, allow_nan=False)
sampling = st.lists(st.tuples(tokens, logprobs, st.sampled_from(["v1", "v2", None])), max_size=4)


@dataclass
class Known:
    """What the model knows of a turn."""

    parent: int | None
    branch: list[Place]
    logprobs: list[float]
    versions: list[str | None]
    side: bool
    rejected: bool = False


@dataclass
class Waiting:
    """A prepared turn, and the prompt the model expects of it."""

    prepared: PreparedTurn
    parent: int | None
    prompt: list[int]
    closing: list[int]
    context: list[int]


class Growing(RuleBasedStateMachine):
    """Everything that can happen to a tree."""

    @initialize()
    def start(self) -> None:
        self.tree = TokenTree("t")
        self.known: list[Known] = []
        self.waiting: list[Waiting] = []

    # What can happen

    def _prepare(self, parent: int | None, closing: list[int], context: list[int], purpose: TurnPurpose) -> Waiting:
        join = Join.ROOT if parent is None else Join.PROVED
        turn = None if parent is None else self.tree[parent]
        prepared = self.tree.prepare(turn, closing=closing, context=context, purpose=purpose, join=join)
        before = [] if parent is None else self.known[parent].branch
        prompt = [token for token, *_ in before] + closing + context
        assert prepared.ids.tolist() == prompt
        return Waiting(prepared, parent, prompt, closing, context)

    def _commit(self, waiting: Waiting, sampled: list[tuple[int, float, str | None]], counted: bool) -> Turn:
        id = len(self.known)
        before = [] if waiting.parent is None else self.known[waiting.parent].branch
        branch: list[Place] = list(before)
        branch += [(token, id, Origin.CLOSING, None) for token in waiting.closing]
        branch += [(token, id, Origin.CONTEXT, None) for token in waiting.context]
        branch += [(token, id, Origin.SAMPLED, offset) for offset, (token, _, _) in enumerate(sampled)]
        versions = [version for _, _, version in sampled]
        spans = [VersionSpan(version, at, at + 1) for at, version in enumerate(versions)]
        if not counted:
            spans, versions = [], [None] * len(sampled)
        turn = self.tree.commit(
            waiting.prepared,
            [token for token, _, _ in sampled],
            [logprob for _, logprob, _ in sampled],
            spans,
            prompt_tokens=len(waiting.prompt) if counted else None,
        )
        assert turn.id == id and turn.sampled_start == len(waiting.prompt)
        side = waiting.prepared.purpose is TurnPurpose.SIDE
        self.known.append(Known(waiting.parent, branch, [logprob for _, logprob, _ in sampled], versions, side))
        return turn

    @rule(context=runs, sampled=sampling, purpose=purposes, counted=st.booleans())
    def root(
        self, context: list[int], sampled: list[tuple[int, float, str | None]], purpose: TurnPurpose, counted: bool
    ) -> None:
        self._commit(self._prepare(None, [], context, purpose), sampled, counted)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), closing=runs, context=runs, sampled=sampling, purpose=purposes)
    def extend_a_tip(
        self,
        data: st.DataObject,
        closing: list[int],
        context: list[int],
        sampled: list[tuple[int, float, str | None]],
        purpose: TurnPurpose,
    ) -> None:
        parents = {known.parent for known in self.known}
        tips = [id for id in range(len(self.known)) if id not in parents]
        self._commit(self._prepare(data.draw(st.sampled_from(tips)), closing, context, purpose), sampled, True)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), closing=runs, context=runs, sampled=sampling)
    def fork_anywhere(
        self, data: st.DataObject, closing: list[int], context: list[int], sampled: list[tuple[int, float, str | None]]
    ) -> None:
        parent = data.draw(st.integers(0, len(self.known) - 1))
        self._commit(self._prepare(parent, closing, context, TurnPurpose.EPISODE), sampled, False)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), sampled=sampling)
    def retry(self, data: st.DataObject, sampled: list[tuple[int, float, str | None]]) -> None:
        bad = data.draw(st.integers(0, len(self.known) - 1))
        self.tree.reject(self.tree[bad])
        self.known[bad].rejected = True
        turn = self.tree[bad]
        again = self._prepare(turn.parent, turn.closing.tolist(), turn.context.tolist(), turn.purpose)
        self._commit(again, sampled, True)

    @rule(data=st.data(), closing=runs, context=runs, purpose=purposes)
    def prepare_and_wait(
        self, data: st.DataObject, closing: list[int], context: list[int], purpose: TurnPurpose
    ) -> None:
        before = self.tree.to_dict()
        parent = data.draw(st.none() | st.integers(0, len(self.known) - 1)) if self.known else None
        self.waiting.append(self._prepare(parent, [] if parent is None else closing, context, purpose))
        assert self.tree.to_dict() == before

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), sampled=sampling)
    def commit_one_that_waits(self, data: st.DataObject, sampled: list[tuple[int, float, str | None]]) -> None:
        waiting = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self._commit(waiting, sampled, True)
        before = self.tree.to_dict()
        with pytest.raises(TreeError):
            self.tree.commit(waiting.prepared, [1], [-1.0])
        assert self.tree.to_dict() == before

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort_one_that_waits(self, data: st.DataObject) -> None:
        self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), failure=st.sampled_from(["logprobs", "spans", "prompt", "ids"]))
    def fail_to_commit(self, data: st.DataObject, failure: str) -> None:
        prepared = data.draw(st.sampled_from(self.waiting)).prepared
        before = self.tree.to_dict()
        length = len(prepared.ids)
        calls: dict[str, Callable[[], Turn]] = {
            "logprobs": lambda: self.tree.commit(prepared, [1, 2], [-1.0]),
            "spans": lambda: self.tree.commit(prepared, [1, 2], [-1.0, -1.0], [VersionSpan("v", 0, 1)]),
            "prompt": lambda: self.tree.commit(
                prepared, [1], [-1.0], prompt_tokens=length + data.draw(st.integers(1, 3))
            ),
            "ids": lambda: self.tree.commit(prepared, [1, -1], [-1.0, -1.0]),
        }
        with pytest.raises((TreeError, CountMismatchError)):
            calls[failure]()
        assert self.tree.to_dict() == before and prepared.turn is None

    @precondition(lambda self: any(waiting.prompt for waiting in self.waiting))
    @rule(data=st.data(), longer=st.booleans())
    def change_a_prompt_behind_our_back(self, data: st.DataObject, longer: bool) -> None:
        prepared = data.draw(st.sampled_from([waiting for waiting in self.waiting if waiting.prompt])).prepared
        before, sent = self.tree.to_dict(), prepared.ids[:]
        at = data.draw(st.integers(0, len(sent) - 1))
        if longer:
            prepared.ids.insert(at, data.draw(tokens))
        else:
            prepared.ids[at] += 1
        with pytest.raises(TreeError):
            self.tree.commit(prepared, [1], [-1.0])
        assert self.tree.to_dict() == before
        prepared.ids = array("i", sent)  # so that it can still be committed

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        id = data.draw(st.integers(0, len(self.known) - 1))
        self.tree.reject(self.tree[id])
        self.known[id].rejected = True

    @rule(way=st.sampled_from(["dict", "pickle", "deepcopy"]))
    def copy(self, way: str) -> None:
        before = self.tree.to_dict()
        if way == "dict":
            self.tree, self.waiting = TokenTree.from_dict(before), []
        elif way == "pickle":
            self.tree, self.waiting = pickle.loads(pickle.dumps((self.tree, self.waiting)))
        else:
            self.tree, self.waiting = copy.deepcopy((self.tree, self.waiting))
        assert self.tree.to_dict() == before

    # What always holds

    @invariant()
    def the_turns_are_those_of_the_model(self) -> None:
        assert len(self.tree) == len(self.known)
        for id, known in enumerate(self.known):
            turn = self.tree[id]
            assert self.tree.ids(turn).tolist() == [token for token, *_ in known.branch]
            assert (turn.id, turn.parent, turn.rejected, turn.end) == (
                *(id, known.parent, known.rejected),
                len(known.branch),
            )
            assert turn.logprobs.tolist() == known.logprobs
            assert [span.version for span in turn.versions for _ in range(span.start, span.end)] == known.versions
            assert [one.id for one in self.tree.children(turn)] == [
                child for child, other in enumerate(self.known) if other.parent == id
            ]
            before = [] if known.parent is None else self.tree.ids(self.tree[known.parent]).tolist()
            prompt = before + turn.closing.tolist() + turn.context.tolist()
            assert self.tree.ids(turn).tolist() == prompt + turn.sampled.tolist()

    @invariant()
    def each_sampled_token_that_counts_is_trained_exactly_once(self) -> None:
        for purpose in (TurnPurpose.EPISODE, TurnPurpose.SIDE, None):
            for rejected in (False, True):
                self._trained_once(purpose, rejected)

    def _trained_once(self, purpose: TurnPurpose | None, rejected: bool) -> None:
        counted = {
            id
            for id, known in enumerate(self.known)
            if (purpose is None or known.side == (purpose is TurnPurpose.SIDE)) and (rejected or not known.rejected)
        }
        trained: Counter[Place] = Counter()
        trajectories = self.tree.trajectories(purpose=purpose, rejected=rejected)
        assert [one.branch for one in trajectories] == sorted({one.branch for one in trajectories})
        for trajectory in trajectories:
            assert trajectory.branch in counted
            assert Trajectory.from_dict(trajectory.to_dict()) == trajectory
            trained.update(self._checked(trajectory))
        expected = {
            place for id in counted for place in self.known[id].branch if place[1] == id and place[2] is Origin.SAMPLED
        }
        assert trained == Counter(expected)
        # No branch is a beginning of another.
        on_the_way = {id for one in trajectories for id in one.turn_ids[:-1]}
        assert not on_the_way & {one.branch for one in trajectories}

    def _checked(self, trajectory: Trajectory) -> list[Place]:
        """Check every token of a trajectory against the model; return the places that are trained."""
        trajectory.validate()
        branch = self.known[trajectory.branch].branch
        assert trajectory.token_ids.tolist() == [token for token, *_ in branch]
        trained = []
        for at, place in enumerate(branch):
            _, id, origin, offset = place
            assert trajectory.turn_ids[trajectory.turns[at]] == id and trajectory.origins[at] == origin
            assert trajectory.logprobs[at] == (0.0 if offset is None else self.known[id].logprobs[offset])
            if offset is None:
                assert trajectory.versions[at] == -1 and trajectory.loss_mask[at] == 0
            else:
                assert trajectory.version_names[trajectory.versions[at]] == self.known[id].versions[offset]
            if trajectory.loss_mask[at]:
                trained.append(place)
        return trained

    @invariant()
    def the_manager_shows_the_last_kept_turn_of_the_episode(self) -> None:
        manager = TokenManager(self.tree)
        kept = [id for id, known in enumerate(self.known) if not known.side and not known.rejected]
        branch = self.known[kept[-1]].branch if kept else []
        assert manager.token_ids == [token for token, *_ in branch]
        assert manager.loss_mask == [
            int(offset is not None and not self.known[id].rejected) for _, id, _, offset in branch
        ]
        assert sum(length for _, length in manager.segment_info) == len(manager) == len(branch)


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(
    max_examples=size(30, 60), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
