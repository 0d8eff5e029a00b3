"""Converts between slime's samples and episodes: `SlimeSpecs` makes episode specifications, `samples_of` fills samples.

Invariants:

- A sample that slime passes in again is the same episode, with the task, the id and the record of the first time.
  Budgets apply to all turns together. What slime passes in is copied and never changed.
- A returned sample is complete however the episode ended: at least one response token and one token before it, loss
  mask and logprobs as long as the response and without None, loss only on sampled tokens. Every field is overwritten
  each time, so that a sample that was filled before is filled as if it were new.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.errors import ConfigurationError, MalformedResponseError
from strands_sglang.ledger.event import BeginData, data_of
from strands_sglang.ledger.figures import EVALUATION_TASK
from strands_sglang.ledger.record import EpisodeRecord, PortableRecord
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.limits import Limits
from strands_sglang.runs.resume import task_of
from strands_sglang.runs.task import Task
from strands_sglang.runs.workers.spec import EpisodeSpec
from strands_sglang.tokens import Join, KeptSets, TokenTree, Turn
from strands_sglang.tokens.trajectory import branch_images
from strands_sglang.tokens.turn import Origin
from strands_sglang.trainers.chat_tasks import chat_task
from strands_sglang.trainers.images import ImageFeatures, images_within, pictures_of
from strands_sglang.trainers.rows import Branches, Row, rows
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm, engine_sampling, write_kept_sets
from strands_sglang.trainers.slime.types import S, SlimeSample, copy_sample
from strands_sglang.trainers.statuses import TrainerStatus, status_of
from strands_sglang.trainers.worker_pool import bound_limits

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_sglang"


class RemovalReason(str, Enum):
    """Why a sample is kept out of the loss."""

    ABORTED = "aborted"
    FAILED = "failed"
    NOTHING_SAMPLED = "nothing_sampled"
    NOT_SCORED = "not_scored"
    NO_EXPERTS = "no_experts"
    """Routed experts are required, but those of this branch are unknown."""
    NO_KEPT_SETS = "no_kept_sets"
    NO_TEACHER = "no_teacher"
    STALE = "stale"
    """Its tokens are too old (`max_staleness`)."""


@dataclass(frozen=True, slots=True)
class _Content:
    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    path: Sequence[Turn]
    """Empty for a placeholder."""
    cut: int = 0
    kept: KeptSets | None = None
    """Kept set of each response token; None if not recorded."""
    teacher: list[float] | None = None


_PLACEHOLDER = _Content([0, 0], [0], [0.0], ())


def samples_of(
    sample: S,
    episode: Episode,
    *,
    branches: Branches = Branches.MAIN,
    decode: Callable[[Sequence[int]], str],
    response_limit: int | None = None,
    expert_shape: tuple[int, int] | None = None,
    off_policy: Mapping[int, int] | None = None,
    reward_key: str | None = None,
    images: ImageFeatures | None = None,
    kept_sets: KeptSetsForm = KeptSetsForm.NONE,
    needs_teacher: bool = False,
) -> list[S]:
    """Write an episode into a sample, and its further branches into copies of the sample.

    Args:
        sample: The sample that slime passed, with any status. It becomes the first of the list.
        branches: Whether further branches become samples of their own. Episodes that are not trained (aborted,
            failed, not scored) are always one sample.
        response_limit: Maximum number of response tokens; the rest is cut off. None means no maximum.
        expert_shape: Layers and experts per layer. If given, every sample has routed experts. Where they are unknown,
            placeholders are used and the sample is kept out of the loss.
        off_policy: By turn id, the number of tokens at the start of the turn's sampled tokens that are not trained.
        reward_key: Key under which slime reads the number in a reward; None if the reward is the number itself.
        images: Computes the tensors of images; None: samples with images have the images without tensors.
        kept_sets: The form in which the trainer needs kept sets. If it needs them, a branch
            without them is kept out of the loss.
    """
    # A status for slime alone is set here: what follows decides by it what is trained.
    status = status_of(episode)
    removed = _removal_reason(status, episode)
    given = rows(episode, Branches.ALL)[:1] if removed is not None else rows(episode, branches)
    contents = [_content(row, episode, response_limit, off_policy or {}, bool(kept_sets)) for row in given]
    contents = [one for one in contents if any(one.mask)] or contents[:1]
    if not contents:
        old = episode.staleness is not None and episode.staleness.too_old
        contents, removed = [_PLACEHOLDER], removed or (RemovalReason.STALE if old else RemovalReason.NOTHING_SAMPLED)
    if removed is not None and any(missing_images(one.path, episode) for one in contents):
        contents = [_PLACEHOLDER]  # paused again before its images were shown again: the record has them
    made = [sample, *(copy_sample(sample) for _ in contents[1:])]
    rollout_id = _rollout_id(sample, episode) if branches is Branches.ALL else sample.rollout_id
    counted: set[int] = set()
    for target, one in zip(made, contents, strict=True):
        target.rollout_id = rollout_id
        why, choices = removed, None
        if expert_shape is not None:
            choices = _choices(one, episode, expert_shape)
            if choices is None:
                why, choices = why or RemovalReason.NO_EXPERTS, _placeholder_experts(len(one.tokens) - 1, expert_shape)
        target.rollout_routed_experts = choices
        if kept_sets and one.kept is None:
            why = why or RemovalReason.NO_KEPT_SETS
        if needs_teacher and one.teacher is None:
            why = why or RemovalReason.NO_TEACHER
        _write(target, one, status, why, decode)
        target.teacher_log_probs = one.teacher or ([0.0] * len(one.mask) if needs_teacher else None)
        write_kept_sets(target, one.kept, one.tokens[-len(one.mask) :], kept_sets)
        _write_images(target, one, episode, images)
        target.reward = _reward(episode, why, reward_key)
        target.non_generation_time = episode.metrics.tool_seconds
        _count(target, [turn for turn in one.path if turn.id not in counted])
        counted.update(turn.id for turn in one.path)
        target.metadata = {**(target.metadata or {}), METADATA_KEY: _about(episode, one, len(contents), why)}
    return made


def _removal_reason(status: TrainerStatus, episode: Episode) -> RemovalReason | None:
    if episode.staleness is not None and episode.staleness.dropped:
        return RemovalReason.STALE
    if not status.trained:
        return RemovalReason(status.value)
    return RemovalReason.NOT_SCORED if episode.reward_detail.error is not None else None


def _content(
    row: Row, episode: Episode, limit: int | None, off_policy: Mapping[int, int], renormalised: bool
) -> _Content:
    """The row is cut to the limit and still ends with a sampled token.

    Kept sets and the logprobs over them are used only if the trainer renormalises, too (`renormalised`).
    """
    flat, first, length = row.trajectory, len(row.prompt_ids), len(row.response_ids)
    kept = length if limit is None else min(length, max(limit, 1))
    # A response begins with a sampled token, so there is always a last sampled token.
    kept = int(np.flatnonzero(flat.origins[first : first + kept] == Origin.SAMPLED)[-1]) + 1
    path = episode.tree.path(episode.tree[flat.branch])
    mask = row.loss_mask[:kept].copy()
    for turn in path:
        begin = turn.sampled_start - first
        mask[min(begin, kept) : min(begin + off_policy.get(turn.id, 0), begin + len(turn.sampled), kept)] = 0
    tokens, logprobs = flat.token_ids[: first + kept].tolist(), row.logprobs[:kept].tolist()
    sets = None if row.kept is None or not renormalised else row.kept.part(0, kept)
    if sets is not None:
        logprobs = sets.logprobs.tolist()  # of the policy that sampled: over the kept sets
    scores = None if row.teacher is None else row.teacher.logprobs[:kept].tolist()
    if first == 0 and kept == 1:
        tokens = [0, *tokens]
        mask[0] = 0
    elif first == 0:
        # Nothing precedes the first sampled token: it cannot be trained, and becomes the prompt.
        mask, logprobs = mask[1:], logprobs[1:]
        sets = None if sets is None else sets.part(1, kept)
        scores = None if scores is None else scores[1:]
    return _Content(tokens, mask.tolist(), logprobs, path, length - kept, sets, scores)


def _write(
    sample: SlimeSample,
    content: _Content,
    status: TrainerStatus,
    why: RemovalReason | None,
    decode: Any,
) -> None:
    length = len(content.mask)
    sample.tokens, sample.response_length = list(content.tokens), length
    sample.response = decode(content.tokens[-length:]) if content.path else ""
    sample.loss_mask = list(content.mask) if why is None else [0] * length
    sample.rollout_log_probs = list(content.logprobs)
    sample.remove_sample = why is not None
    end = len(content.tokens)
    spans = [(turn.sampled_start + span.start, span.version) for turn in content.path for span in turn.versions]
    sample.weight_versions = [version for start, version in spans if version is not None and start < end]
    if content.cut and status is TrainerStatus.COMPLETED:
        status = TrainerStatus.LIMIT_REACHED
    sample.status = type(sample.status)[status.slime_name]


def missing_images(path: Sequence[Turn], episode: Episode) -> bool:
    """Return whether an image of a branch is not among the episode's files."""
    return any(image.digest not in episode.image_files for turn in path for image in turn.images)


def _write_images(sample: Any, content: _Content, episode: Episode, features: ImageFeatures | None) -> None:
    if not hasattr(sample, "multimodal_inputs"):
        return
    # A sample of the dataset may have images of its own; those that the agent saw replace them.
    sample.multimodal_inputs = sample.multimodal_train_inputs = None
    shown, files = images_within(branch_images(content.path), len(content.tokens)), episode.image_files
    if shown:
        sample.multimodal_inputs = {"images": pictures_of(files, shown)}
        sample.multimodal_train_inputs = None if features is None else features.of(files, shown)


def _reward(episode: Episode, why: RemovalReason | None, key: str | None) -> float | dict[str, Any] | None:
    """None only if a trainable episode was not scored, so that slime's reward model scores it."""
    value = 0.0 if why is not None else episode.reward
    return value if key is None or value is None else {**episode.reward_detail.parts, key: value}


def _choices(content: _Content, episode: Episode, shape: tuple[int, int]) -> npt.NDArray[np.int32] | None:
    known = episode.routed_experts.get(content.path[-1].id) if content.path else None
    if known is None or known.start:
        return None
    try:
        decoded = known.decode(*shape)
    except MalformedResponseError as error:
        logger.warning("branch=<%d>, error=<%s> | routed experts do not fit the branch", content.path[-1].id, error)
        return None
    wanted = len(content.tokens) - 1
    # A copy, because torch does not accept read-only arrays.
    return np.array(decoded[:wanted]) if len(decoded) >= wanted else None


def _placeholder_experts(count: int, shape: tuple[int, int]) -> npt.NDArray[np.int32]:
    """Experts 0, 1, ... in each layer: slime rejects all zeros."""
    layers, top_k = shape
    return np.tile(np.arange(top_k, dtype=np.int32), (count, layers, 1))


def _count(sample: SlimeSample, turns: Sequence[Turn]) -> None:
    """Set the engine's counters for turns that no other sample of the episode has counted."""
    cache, spec = type(sample.prefix_cache_info)(), type(sample.spec_info)()
    cache.cached_tokens = sum(turn.detail.get("cached_tokens") or 0 for turn in turns)
    cache.total_prompt_tokens = sum(turn.sampled_start for turn in turns)
    counted_by_engine = [turn.detail["spec"] for turn in turns if turn.detail.get("spec")]
    spec.spec_accept_token_num = sum(counts["accepted_tokens"] for counts in counted_by_engine)
    spec.spec_draft_token_num = sum(counts["drafted_tokens"] for counts in counted_by_engine)
    spec.spec_verify_ct = sum(counts["verify_count"] for counts in counted_by_engine)
    spec.completion_token_num = sum(len(turn.sampled) for turn in turns)
    sample.prefix_cache_info, sample.spec_info = cache, spec


def _rollout_id(sample: SlimeSample, episode: Episode) -> int:
    for known in (sample.rollout_id, sample.index):
        if known is not None:
            return known
    return int.from_bytes(hashlib.blake2b(episode.id.encode(), digest_size=7).digest(), "big")


def _about(episode: Episode, content: _Content, siblings: int, why: RemovalReason | None) -> dict[str, Any]:
    main = episode.tree.main_leaf()
    return {
        "episode": episode.id,
        "end_reason": episode.end_reason.value,
        "turns": episode.metrics.turns,
        "tool_calls": episode.metrics.tool_calls,
        "branch": content.path[-1].id if content.path else None,
        "agent": next((turn.agent for turn in reversed(content.path) if turn.agent is not None), None),
        "main": bool(content.path) and main is not None and content.path[-1].id == main.id,
        "branches": siblings,
        "cut_tokens": content.cut,
        "removed": None if why is None else why.value,
        "parts": dict(episode.reward_detail.parts),
        "failure": None if episode.failure is None else f"{episode.failure.kind}: {episode.failure.message}"[:500],
    }


class SampleGroup(list[Any]):
    """The samples of one episode, the main branch first; it also behaves like its first sample.

    slime accepts a list where a rollout consists of several samples. But where it sets such a list aside and takes it
    up again (partial and fully asynchronous rollouts), it reads and writes it like a single sample. So reading an
    attribute reads it from the first sample, and writing one writes it to all. A group is never empty.

    Example:
        >>> group = SampleGroup([main, branch])
    """

    @property
    def index(self) -> Any:
        """Number of the sample, by which slime sorts groups; it replaces the list's method of that name."""
        return self[0].index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self:
            raise AttributeError(name)
        return getattr(self[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_mask" and value is not None and not any(value):
            # slime's partial rollouts mask a resumed sample as a whole, with as many zeros as the first sample needs.
            for sample in self:
                sample.loss_mask = [0] * sample.response_length
            return
        for sample in self:
            setattr(sample, name, value)


def with_partial_turn(episode: Episode) -> Episode:
    """Return a paused episode with the interrupted turn as its last turn, for slime to keep until it continues.

    The episode itself continues from its record, in which the interrupted turn is not a turn yet. Nothing of the result
    is trained. An episode that was not interrupted within a turn of the agent's own is returned unchanged.
    """
    partial = next((partial for partial in episode.partial_turns if not partial.within), None)
    if partial is None or episode.tree.has_images:  # the prompt of a partial turn does not say which images it has
        return episode
    tree, prompt = TokenTree.from_dict(episode.tree.to_dict()), partial.prompt
    known = [turn for turn in tree.turns if turn.end < len(prompt) and tree.ids(turn) == prompt[: turn.end]]
    parent = max(known, key=lambda turn: turn.end, default=None)
    prepared = tree.prepare(
        parent,
        context=prompt[0 if parent is None else parent.end :],
        join=Join.ROOT if parent is None else Join.KEPT,
    )
    sampled = partial.sampled
    tree.commit(
        prepared, sampled.token_ids, sampled.logprobs, sampled.versions, finish_reason=sampled.finish_reason.value
    )
    return replace(episode, source=tree)


RECORD_KEY = "record"


class SessionField(str, Enum):
    """The field of a sample that holds the routing key of its episode."""

    SLIME = "session_id"
    MILES = "routing_key"


class SlimeSpecs:
    """Makes episode specifications from samples."""

    def __init__(
        self,
        limits: Limits,
        task: Callable[[Any], Any] | None = None,
        session_field: SessionField = SessionField.SLIME,
    ) -> None:
        """Keep the settings; `task` None: the prompt is the question, the label the answer."""
        self._limits, self._task, self._session_field = limits, task, session_field
        self._begun: Counter[tuple[str, int]] = Counter()  # how often each sample began

    def spec(self, args: Any, sample: SlimeSample, sampling: Mapping[str, Any], *, evaluation: bool) -> EpisodeSpec:
        """Return the episode specification of a sample."""
        session = self._session(sample)
        record = record_of(sample)
        limits = self.limits(args, sampling, evaluation=evaluation)
        common: dict[str, Any] = {"sampling_params": engine_sampling(sampling), "limits": limits, "session": session}
        if record is not None:
            begin = record.begin
            assert begin is not None
            return EpisodeSpec(task_of(record), int(data_of(begin, BeginData)["sample"]), record=record, **common)
        return EpisodeSpec(*self._new_task(sample, evaluation), **common)

    def limits(self, args: Any, sampling: Mapping[str, Any], *, evaluation: bool) -> Limits:
        """Return the limits of an episode: its response over all turns, and its context."""
        response, name = sampling.get("max_new_tokens"), f"{'eval' if evaluation else 'rollout'}_max_context_len"
        context = getattr(args, name, None)
        return bound_limits(self._limits, max_response_tokens=response, max_context_tokens=context)

    def _new_task(self, sample: SlimeSample, evaluation: bool) -> tuple[Task, int]:
        # The samples of a group are those of one task. slime may run a sample again that failed or that it discarded:
        # every episode has an id of its own.
        number = sample.index if sample.index is not None else 0
        if self._task is not None:
            task = replace(Task.of(self._task(sample)), id="")
        else:
            data = {name: value for name, value in (sample.metadata or {}).items() if name != METADATA_KEY}
            task = chat_task(sample.prompt, answer=sample.label, data=data)
        # An evaluation has no groups: its tasks are named by what they ask, so that two runs can be compared.
        id = f"{EVALUATION_TASK}{task.id}" if evaluation else f"g{sample.group_index}"
        again = self._begun[id, number]
        self._begun[id, number] += 1
        return replace(task, id=f"{id}.{again}" if again else id), number

    def _session(self, sample: Any) -> str:
        name = self._session_field.value
        if self._session_field is SessionField.SLIME and not hasattr(sample, name) and hasattr(sample, "routing_key"):
            raise ConfigurationError(
                f"sample must be slime's, got a {type(sample).__name__} with a routing_key, which is Miles': use "
                "miles_rollout(...) in place of slime_rollout(...)"
            )
        session: str | None = getattr(sample, name, None)
        if session is None:
            session = uuid.uuid4().hex
            setattr(sample, name, session)
        return session


def check_args(args: Any, branches: Branches, *, evaluation: bool) -> None:
    """Raise ConfigurationError if slime's arguments cannot work with agents."""
    if getattr(args, "apply_chat_template", False):
        raise ConfigurationError(
            "--apply-chat-template must be off: the agent renders its conversation itself, and would get the rendered "
            "prompt, control tokens included. Remove the flag"
        )
    pausable = "fully_async" in str(getattr(args, "rollout_function_path", ""))
    pausable = pausable or getattr(args, "partial_rollout", False)
    if branches is Branches.ALL and pausable and getattr(args, "rollout_sample_hook_path", None):
        raise ConfigurationError(
            "branches='all' must not be combined with --rollout-sample-hook-path in partial or fully asynchronous "
            "rollouts: after the hook slime does not recognise a paused episode. Remove the hook, or use "
            "branches='main'"
        )


def record_of(sample: SlimeSample) -> EpisodeRecord | None:
    """Return the record that a sample continues from; None if it has not begun."""
    about = (sample.metadata or {}).get(METADATA_KEY)
    data = about.get(RECORD_KEY) if isinstance(about, Mapping) else None
    if data is None:
        return None
    portable = data if isinstance(data, PortableRecord) else PortableRecord.from_bytes(data)
    return portable.record
