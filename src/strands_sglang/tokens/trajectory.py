"""One branch as flat arrays, as trainers need it: `Trajectory`.

Invariant: all arrays have the same length, and position i of each is the i-th token of the branch. The loss mask is 1
only where the origin is `SAMPLED`. `validate` checks this.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import CountMismatchError, RecordError, TreeError
from strands_sglang.tokens.arrays import LARGEST_LOGPROB, plain_array
from strands_sglang.tokens.images import ImageSpan, compact, copied_images
from strands_sglang.tokens.kept_sets import KeptSets
from strands_sglang.tokens.teacher import NO_ID, TeacherLogprobs
from strands_sglang.tokens.turn import Origin, Turn

TRAJECTORY_FORMAT = 1  # version of `Trajectory.to_dict`


@dataclass(slots=True, eq=False, repr=False)
class Trajectory:
    """A branch as flat numpy arrays with one entry per token. Compared by value.

    Example:
        >>> tree = TokenTree("t")
        >>> tree.trajectory(tree.commit(tree.prepare(None, context=[1, 2]), [3], [-0.5])).loss_mask.tolist()
        [0, 0, 1]
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int8]
    """1 on the tokens to train, all of which were sampled; else 0."""
    logprobs: npt.NDArray[np.float64]
    """Log-probability as reported by the engine, bit for bit; 0.0 where nothing was sampled."""
    versions: npt.NDArray[np.int32]
    """Index into `version_names` of the weights that sampled the token; -1 where nothing was sampled."""
    turns: npt.NDArray[np.int32]
    """Index into `turn_ids` of the turn the token belongs to."""
    origins: npt.NDArray[np.int8]
    """Origin of the token, as an `Origin` number."""
    version_names: tuple[str | None, ...]
    """Weight versions of the branch, in order of first use; None is an unreported version."""
    branch: int
    """Id of the branch's last turn; -1 if the tree has no turn yet."""
    tree: str
    turn_ids: tuple[int, ...]
    """Id in the tree of each turn of the branch, first to last."""
    agent: str | None = None
    """Name of the agent, or of the node of a graph, that made the branch; None if unknown. Ignored by `==`."""
    main: bool = False
    """Whether this is the branch that gave the episode's answer (`TokenTree.main_leaf`). Ignored by `==`."""
    images: tuple[ImageSpan, ...] = ()
    """Images in order; positions count from the first token, and `token_ids` has a placeholder for each position."""
    kept: KeptSets | None = None
    """Kept set of every token (empty: not sampled) and behaviour logprobs; None unless all sampled tokens have one."""
    teacher: TeacherLogprobs | None = None
    """A teacher's logprob of every token, 0.0 where nothing was sampled; None unless all sampled tokens have one."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        trained = int(self.loss_mask.sum(dtype=np.int64))
        about = f"tokens={len(self)}, trained={trained}, turns={self.num_turns}"
        return f"Trajectory(tree={self.tree!r}, branch={self.branch}, {about})"

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first sampled one; all of them if nothing was sampled."""
        sampled = self.origins == Origin.SAMPLED
        return int(sampled.argmax()) if sampled.any() else len(self)

    @property
    def response_length(self) -> int:
        """Number of tokens from the first sampled one on, including context in between."""
        return len(self) - self.prompt_length

    @property
    def num_turns(self) -> int:
        """Number of turns of the branch."""
        return len(self.turn_ids)

    def compact_ids(self) -> array[int]:
        """Return the ids with one placeholder for each image, as the engine receives them."""
        return compact(array("i", self.token_ids.tobytes()), self.images)

    def validate(self) -> None:
        """Raise CountMismatchError unless the arrays are consistent."""
        shapes = {name: getattr(self, name).shape for name in _ARRAYS}
        if set(shapes.values()) != {(len(self),)}:
            raise CountMismatchError(f"arrays must have the same shape, got {shapes}")
        sampled = self.origins == Origin.SAMPLED
        turns = self.turns.astype(np.int64)
        _require(self.token_ids >= 0, "a token id below 0")
        _require((self.origins >= min(Origin)) & (self.origins <= max(Origin)), "an unknown origin")
        _require((self.loss_mask == 0) | (self.loss_mask == 1), "a loss mask that is neither 0 nor 1")
        _require(sampled | (self.loss_mask == 0), "loss on a token that was not sampled")
        _require(np.isfinite(self.logprobs), "a logprob that is not finite")
        _require(self.logprobs <= LARGEST_LOGPROB, "a logprob above 0")
        _require(sampled | (self.logprobs == 0.0), "a logprob on a token that was not sampled")
        _require(self.versions < len(self.version_names), "a weight version without a name")
        _require(np.where(sampled, self.versions >= 0, self.versions == -1), "a wrong weight version")
        _require((turns >= 0) & (turns < len(self.turn_ids)), "a turn that is not in the branch")
        _require(np.diff(turns, prepend=0) >= 0, "a turn before its parent")
        if self.images:
            try:
                copied_images(self.images, array("i", self.token_ids.tobytes()))
            except TreeError as error:
                raise CountMismatchError(str(error)) from error
            for image in self.images:
                _require(self.origins[image.start : image.end] == Origin.CONTEXT, "an image that is not context")
        if self.kept is not None:
            sampled_ids = np.flatnonzero(sampled)
            sizes = np.diff(np.asarray(self.kept.offsets))
            if len(sizes) != len(self):
                raise CountMismatchError(f"{len(self)} tokens but {len(sizes)} kept sets")
            _require(sampled | (sizes == 0), "a kept set for a token that was not sampled")
            kept = KeptSets.of(
                (self.kept.at(int(at)) for at in sampled_ids), (self.kept.logprobs[int(at)] for at in sampled_ids)
            )
            kept.check_members(self.token_ids[sampled].tolist())
        if self.teacher is not None:
            if len(self.teacher) != len(self):
                raise CountMismatchError(f"{len(self)} tokens but {len(self.teacher)} logprobs of a teacher")
            scored = np.asarray(self.teacher.logprobs)
            _require(sampled | (scored == 0.0), "a teacher's logprob on a token that was not sampled")
        if self.branch != (self.turn_ids[-1] if self.turn_ids else -1):
            raise CountMismatchError(f"branch must be the last of the turns {self.turn_ids}, got {self.branch}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _SCALARS) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _ARRAYS
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings; floats come back bit for bit."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        names, ids = list(self.version_names), list(self.turn_ids)
        scalars: dict[str, Any] = {"tree": self.tree, "branch": self.branch, "agent": self.agent, "main": self.main}
        scalars |= {"turn_ids": ids, "version_names": names}
        if self.images:
            scalars["images"] = [[*image[:3], list(image.grid)] for image in self.images]
        if self.kept is not None:
            scalars["kept"] = self.kept.to_dict()
        if self.teacher is not None:
            scalars["teacher"] = self.teacher.to_dict()
        return {"format": TRAJECTORY_FORMAT, **scalars, **arrays}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trajectory:
        """Return the trajectory that `to_dict` wrote; RecordError if the format is unknown, or it is inconsistent."""
        if not isinstance(data, Mapping) or data.get("format") != TRAJECTORY_FORMAT:
            raise RecordError(f"a trajectory must be a mapping of format {TRAJECTORY_FORMAT}")
        try:
            arrays = {name: plain_array(code, data[name], name) for name, code in _ARRAYS.items()}
            trajectory = cls(
                **{name: np.asarray(values) for name, values in arrays.items()},
                version_names=tuple(data["version_names"]),
                branch=data["branch"],
                tree=data["tree"],
                turn_ids=tuple(data["turn_ids"]),
                agent=data.get("agent"),
                main=data.get("main") is True,
                images=copied_images(data.get("images", ()), arrays["token_ids"]),
                kept=None if data.get("kept") is None else KeptSets.from_dict(data["kept"]),
                teacher=None if data.get("teacher") is None else TeacherLogprobs.from_dict(data["teacher"]),
            )
            trajectory.validate()
        except (KeyError, TypeError, ValueError, OverflowError, TreeError, CountMismatchError) as error:
            raise RecordError(f"not a trajectory: {error!r}") from error
        return trajectory


_ARRAYS = {"token_ids": "i", "loss_mask": "b", "logprobs": "d", "versions": "i", "turns": "i", "origins": "b"}
_SCALARS = ("version_names", "branch", "tree", "turn_ids", "images", "kept", "teacher")


def branch_images(path: Sequence[Turn]) -> list[ImageSpan]:
    """Return the images of a branch, given as its turns; positions count from its first token."""
    return [image.moved(turn.start + len(turn.closing)) for turn in path for image in turn.images]


def branch_kept(path: Sequence[Turn]) -> KeptSets | None:
    """Return the kept sets of a branch, empty where nothing was sampled; None unless all that was sampled has them."""
    if not any(turn.kept is not None for turn in path) or any(turn.kept is None and turn.sampled for turn in path):
        return None
    ids, offsets, logprobs = array("i"), array("i", [0]), array("d")
    for turn in path:
        before = len(turn.closing) + len(turn.context)
        offsets.extend([len(ids)] * before)
        logprobs.extend([0.0] * before)
        if turn.kept is not None:
            base = len(ids)
            ids += turn.kept.token_ids
            offsets.extend(offset + base for offset in turn.kept.offsets[1:])
            logprobs += turn.kept.logprobs
    return KeptSets(ids, offsets, logprobs)


def branch_teacher(path: Sequence[Turn]) -> TeacherLogprobs | None:
    """Return a teacher's logprobs along a branch; None unless all that was sampled has them, with the same `top`."""
    scored = [turn for turn in path if turn.teacher is not None]
    tops = {turn.teacher.top for turn in scored if turn.teacher is not None and turn.sampled}
    if len(tops) != 1 or any(turn.teacher is None and turn.sampled for turn in path):
        return None
    top, count = tops.pop(), path[-1].end
    logprobs, values = np.zeros(count), np.zeros((count, top))
    ids = np.full((count, top), NO_ID, np.int32)
    for turn in scored:
        if turn.teacher is not None and turn.sampled:
            own = slice(turn.sampled_start, turn.end)
            logprobs[own] = turn.teacher.logprobs
            ids[own], values[own] = turn.teacher.top_id_rows, turn.teacher.top_logprob_rows
    return TeacherLogprobs.of(logprobs, ids, values)


def flatten_branch(
    tree: str,
    path: Sequence[Turn],
    trained: Container[int],
    *,
    main: bool = False,
    untrained_versions: Container[str | None] = (),
) -> Trajectory:
    """Return a branch, given as its turns (maybe none), as a trajectory; `trained`: turns with loss mask 1.

    Tokens that one of `untrained_versions` of the weights sampled have loss mask 0 in any case.
    """
    count = path[-1].end if path else 0
    ids, logprobs = array("i"), np.zeros(count)
    mask, origins = np.zeros(count, np.int8), np.full(count, Origin.CONTEXT, np.int8)
    versions, turns = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    names: dict[str | None, int] = {}
    for number, turn in enumerate(path):
        start, first, end = turn.start, turn.sampled_start, turn.end
        ids += turn.closing + turn.context + turn.sampled
        turns[start:end] = number
        origins[start : start + len(turn.closing)] = Origin.CLOSING
        origins[first:end] = Origin.SAMPLED
        logprobs[first:end] = turn.logprobs
        mask[first:end] = turn.id in trained
        for version, begins, ends in turn.versions:
            versions[first + begins : first + ends] = names.setdefault(version, len(names))
            if version in untrained_versions:
                mask[first + begins : first + ends] = 0
    return Trajectory(
        token_ids=np.asarray(ids),
        loss_mask=mask,
        logprobs=logprobs,
        versions=versions,
        turns=turns,
        origins=origins,
        version_names=tuple(names),
        branch=path[-1].id if path else -1,
        tree=tree,
        turn_ids=tuple(turn.id for turn in path),
        agent=next((turn.agent for turn in reversed(path) if turn.agent is not None), None),
        main=main,
        images=tuple(branch_images(path)),
        kept=branch_kept(path),
        teacher=branch_teacher(path),
    )


def _require(holds: npt.NDArray[np.bool_], otherwise: str) -> None:
    if not holds.all():
        raise CountMismatchError(f"{otherwise}, at token {int(holds.argmin())}")
