"""A teacher model scores the tokens that a run sampled: `teacher_logprobs`.

The teacher is another engine with the same vocabulary. It gets the recorded ids, so nothing is decoded and encoded
again: one request for each trajectory, answered from the prefix cache where trajectories share a beginning.

Invariants: the teacher's answer names the ids it scored, and they are compared with those that were sent. No recorded
event is changed; the scores of an episode are one `TEACHER` event after its end, and the newest counts. An episode that
the same teacher has scored is not scored again, so a call that was interrupted continues where it stopped.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from strands_sglang._async import run_bounded
from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.engine import ScoringEngine, ServerEngine, SGLangClient, is_server, scores
from strands_sglang.engine.prefill import vocabulary_size
from strands_sglang.engine.protocol import in_run, prompt_images
from strands_sglang.errors import ConfigurationError, EngineError, LedgerError
from strands_sglang.ledger.encoding import ids_digest
from strands_sglang.ledger.event import EventKind, TeacherArrays, TeacherData, data_of
from strands_sglang.ledger.record import EpisodeRecord
from strands_sglang.ledger.writer import LedgerWriter
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.finalizer import append_after_end
from strands_sglang.runs.resume import appending, is_over
from strands_sglang.tokens import TeacherLogprobs, Trajectory
from strands_sglang.tokens.turn import Origin

_WORKER = "teacher"
_REACH_SECONDS = 5.0  # time limit of the first contact with a teacher
_IMPLAUSIBLE = -9.0  # mean logprob below which a teacher is worse than chance in most vocabularies


@dataclass(slots=True)
class TeacherReport:
    """What a teacher scored. `text` is for people, `to_dict` for programs."""

    url: str
    model: str
    """The teacher, as its engine reports it."""
    weight_version: str | None
    """Its weight version; None if its engine reports none."""
    top: int = 0
    episodes: int = 0
    known: int = 0
    """Number of episodes that the same teacher had scored before."""
    empty: int = 0
    """Number of episodes with nothing to score: not finished, failed, or without a trajectory."""
    tokens: int = 0
    sent: int = 0
    """Number of tokens that were sent to the teacher, context included."""
    seconds: float = 0.0
    logprob_sum: float = 0.0
    difference_sum: float = 0.0
    """Sum of the student's logprob minus the teacher's."""
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def mean_logprob(self) -> float:
        """Mean logprob that the teacher gives a sampled token; 0 if nothing was scored."""
        return self.logprob_sum / (self.tokens or 1)

    @property
    def mean_difference(self) -> float:
        """Mean of student's logprob minus teacher's, an estimate of the reverse KL divergence per token.

        The student's logprobs are at the temperature of the run, the teacher's at temperature 1: at another temperature
        of the run this is not a divergence of two models.
        """
        return self.difference_sum / (self.tokens or 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        counts = {name: value for name, value in asdict(self).items() if not name.endswith("_sum")}
        return {**counts, "mean_logprob": self.mean_logprob, "mean_difference": self.mean_difference}

    def text(self, failures: int = 10) -> str:
        """Return the report as text for people, with at most `failures` failures."""
        cost = f", {self.seconds * 1000 / self.sent:.3f} s per 1,000 tokens sent" if self.sent else ""
        lines = [
            f"{counted(self.episodes, 'episode')} scored by {self.model}, weights {self.weight_version or 'unknown'}",
            f"  tokens      {self.tokens:,} sampled, {self.sent:,} sent, {self.seconds:.1f} s{cost}",
            f"  logprob     mean {self.mean_logprob:.4g}, student minus teacher {self.mean_difference:.4g} per token",
        ]
        if self.known:
            lines.append(f"  known       {counted(self.known, 'episode')} had been scored by the same teacher")
        if self.empty:
            lines.append(f"  left out    {counted(self.empty, 'episode')}: not finished, failed, or nothing sampled")
        if self.tokens and self.mean_logprob < _IMPLAUSIBLE:
            lines.append(
                "  WARNING     the teacher finds the tokens less likely than chance: does it have the same vocabulary?"
            )
        lines += [f"  FAILED      episode {id}: {why}" for id, why in list(self.failures.items())[:failures]]
        if len(self.failures) > failures:
            lines.append(f"  and {counted(len(self.failures) - failures, 'more episode')}")
        return "\n".join(map(escape_for_terminal, lines))


async def teacher_logprobs(
    source: str | Path | Episode | Iterable[Episode],
    teacher: ScoringEngine | str,
    *,
    top: int = 0,
    episodes: Collection[str] | None = None,
    again: bool = False,
    at_once: int = 16,
    progress: Callable[[TeacherReport], None] | None = None,
) -> TeacherReport:
    """Let a teacher score every sampled token of a recorded run, or of episodes in memory.

    The scores of a run are written to its ledger; those of episodes are set in their trees. From there trajectories
    (`Trajectory.teacher`), the samples of slime and verl, and all exports have them.

    Args:
        source: Directory of a run, or episodes.
        teacher: The teacher's engine, or its base URL. It must have the student's vocabulary. A router works.
        top: Number of the teacher's likeliest ids to keep for each token, with their logprobs; 0: none.
        episodes: Ids of the episodes to score; None: all. Only for a run.
        again: Whether to score episodes again that the same teacher has scored. Only for a run.
        at_once: Maximum number of concurrent requests.
        progress: Called with the report so far, after each episode.

    Returns:
        What was scored. An episode that could not be scored is in `failures`; the others are not affected.

    Raises:
        LedgerError: There is no run in the directory, an id is not in the ledger, or the ledger does not match its
            seal.
        ConfigurationError: An argument cannot work, or another process uses the directory.
        EngineError: The teacher does not answer.

    Example:
        >>> report = await teacher_logprobs("runs/first", "http://localhost:30001", top=8)
    """
    if at_once < 1 or top < 0:
        raise ConfigurationError(f"at_once must be at least 1 and top at least 0, got {at_once} and {top}")
    async with _engine(teacher) as engine:
        scorer = await TeacherScorer.open(engine, top, progress)
        if isinstance(source, str | Path):
            await _score_run(scorer, Path(source), episodes, again, at_once)
        else:
            given = [source] if isinstance(source, Episode) else source
            await run_bounded(scorer.score_episode, given, at_once)
    return scorer.report


@asynccontextmanager
async def _engine(teacher: ScoringEngine | str) -> AsyncIterator[ScoringEngine]:
    if isinstance(teacher, str):
        async with SGLangClient(teacher) as client:
            yield client
    else:
        yield teacher


async def _server_report(engine: ServerEngine, top: int) -> TeacherReport:
    await engine.probe(_REACH_SECONDS).reach(engine.first_contact or 0.0)  # raises with what to check
    info = await engine.control.model_info()
    if top and (size := await vocabulary_size(engine.control)) is not None and top > size:
        raise ConfigurationError(f"top must be at most the {size} ids of the teacher's vocabulary, got {top}")
    return TeacherReport(engine.base_url, info.model_path, info.weight_version, top)


@dataclass(slots=True)
class _Scores:
    by_turn: dict[int, TeacherLogprobs] = field(default_factory=dict)
    branches: list[list[Any]] = field(default_factory=list)  # as `TeacherData.branches`


class TeacherScorer:
    """Scores episodes with one teacher, and reports what was scored."""

    def __init__(
        self, engine: ScoringEngine, report: TeacherReport, progress: Callable[[TeacherReport], None] | None
    ) -> None:
        self.report = report
        self._engine, self._progress = engine, progress
        self._began = time.monotonic()

    @classmethod
    async def open(
        cls, engine: ScoringEngine, top: int, progress: Callable[[TeacherReport], None] | None = None
    ) -> TeacherScorer:
        """Return a scorer after asking the teacher about its model; raises if it cannot score tokens or answer."""
        if not scores(engine):
            raise ConfigurationError(
                f"a teacher must score given tokens (Capability.SCORING), got a {type(engine).__name__}: pass an "
                "SGLangClient or a base URL"
            )
        plain = TeacherReport("", type(engine).__name__, None, top)
        return cls(engine, await _server_report(engine, top) if is_server(engine) else plain, progress)

    async def score_episode(self, episode: Episode) -> None:
        """Score an episode in memory."""
        if episode.end_reason.resumable:
            self.report.empty += 1
            return
        scores = await self._scores(episode.id, episode.trajectories, episode.image_files)
        if scores is not None:
            for turn, own in scores.by_turn.items():
                episode.tree.set_teacher(episode.tree[turn], own)

    async def score_record(self, record: EpisodeRecord, writer: LedgerWriter) -> None:
        """Score a recorded episode, and write the scores after its end."""
        trajectories = await asyncio.to_thread(record.trajectories)
        try:
            images = await asyncio.to_thread(record.images) if any(one.images for one in trajectories) else {}
        except LedgerError as error:
            self.report.failures[record.id] = f"{error!r:.300}"
            return
        scores = await self._scores(record.id, trajectories, images)
        if scores is None:
            return
        await asyncio.to_thread(_append, record, writer, scores, self.report)
        await writer.flushed()

    async def _scores(self, id: str, trajectories: Sequence[Trajectory], images: Mapping[str, bytes]) -> _Scores | None:
        """Return the scores of an episode; None if there is nothing to score, or it failed."""
        scores, report = _Scores(), self.report
        sent, logprobs, difference = 0, 0.0, 0.0
        token = in_run.set(True)  # a teacher that is restarted is waited for, as the engine of a run
        try:
            for flat in trajectories:
                new = self._new_positions(flat, scores)
                if not len(new):
                    continue
                first, end = int(new[0]), int(new[-1]) + 1
                shown = prompt_images((image for image in flat.images if image.start < end), images.__getitem__)
                ids = flat.token_ids[:end].tolist()
                answer = await self._engine.score(ids, first, images=shown, top=report.top)
                rows = new - first
                for number in np.unique(flat.turns[new]):
                    own = rows[flat.turns[new] == number]
                    scores.by_turn[flat.turn_ids[number]] = TeacherLogprobs.of(
                        answer.logprobs[own], answer.top_ids[own], answer.top_logprobs[own]
                    )
                digest = ids_digest(array("i", flat.token_ids[:end].tobytes()), [image.digest for image in shown])
                scores.branches.append([flat.branch, end, digest])
                sent += end
                logprobs += float(answer.logprobs[rows].sum())
                difference += float((flat.logprobs[new] - answer.logprobs[rows]).sum())
        except (EngineError, KeyError) as error:
            report.failures[id] = f"{error!r:.300}"
            self._tell()
            return None
        finally:
            in_run.reset(token)
        if not scores.by_turn:
            report.empty += 1
            return None
        report.episodes += 1
        report.sent += sent
        report.tokens += sum(map(len, scores.by_turn.values()))
        report.logprob_sum += logprobs
        report.difference_sum += difference
        self._tell()
        return scores

    def _new_positions(self, flat: Trajectory, scores: _Scores) -> Any:
        """Return the positions of sampled tokens whose turn is not scored yet. The first token follows nothing."""
        done = np.array([id in scores.by_turn for id in flat.turn_ids])
        found = np.flatnonzero((flat.origins == Origin.SAMPLED) & ~done[flat.turns])
        if len(found) and found[0] == 0:
            raise EngineError("its first token was sampled without a prompt, which a teacher cannot score")
        return found

    def _tell(self) -> None:
        self.report.seconds = time.monotonic() - self._began
        if self._progress is not None:
            self._progress(self.report)


async def _score_run(
    scorer: TeacherScorer, folder: Path, episodes: Collection[str] | None, again: bool, at_once: int
) -> None:
    async with appending(folder, _WORKER, episodes) as (writer, records):

        def to_score() -> Iterator[EpisodeRecord]:
            for record in records:
                if not is_over(record):
                    scorer.report.empty += 1
                elif not again and _is_known(record, scorer.report):
                    scorer.report.known += 1
                else:
                    yield record

        async def score(record: EpisodeRecord) -> None:
            await scorer.score_record(record, writer)

        await run_bounded(score, to_score(), at_once)


def _is_known(record: EpisodeRecord, report: TeacherReport) -> bool:
    """Return whether the same teacher has scored an episode, with at least as many likeliest ids."""
    if record.teacher is None:
        return False
    known = data_of(record.teacher, TeacherData)
    same = (known.get("model"), known.get("weight_version")) == (report.model, report.weight_version)
    return same and known.get("top", 0) >= report.top


def _append(record: EpisodeRecord, writer: LedgerWriter, scores: _Scores, report: TeacherReport) -> None:
    arrays: TeacherArrays = {"logprobs": array("d"), "top_ids": array("i"), "top_logprobs": array("d")}
    for one in scores.by_turn.values():
        arrays["logprobs"] += one.logprobs
        arrays["top_ids"] += one.top_ids
        arrays["top_logprobs"] += one.top_logprobs
    data: TeacherData = {
        "model": report.model,
        "weight_version": report.weight_version,
        "temperature": 1.0,
        "top": report.top,
        "branches": scores.branches,
        "turns": [[turn, len(one)] for turn, one in scores.by_turn.items()],
        "time": time.time(),
    }
    append_after_end(writer, record, EventKind.TEACHER, data, arrays)
