"""A teacher that scores episodes while a trainer runs: `EpisodeTeacher`.

Invariant: an episode that the teacher could not score is returned without scores, and the failure is logged; nothing
is raised but at the first contact, where a wrong address is a setting that cannot work.
"""

from __future__ import annotations

import asyncio
import logging

from strands_sglang.engine import ScoringEngine, SGLangClient
from strands_sglang.runs.episode import Episode
from strands_sglang.runs.offline.teacher import TeacherScorer
from strands_sglang.trainers.worker_pool import PerLoop

logger = logging.getLogger(__name__)


class EpisodeTeacher:
    """Scores the sampled tokens of episodes with another model of the same vocabulary.

    Example:
        >>> teacher = EpisodeTeacher("http://teacher:30000", top=8)
        >>> await teacher.score(episode)
        >>> episode.trajectories[0].teacher.logprobs
    """

    def __init__(self, teacher: ScoringEngine | str, top: int = 0) -> None:
        """Keep the settings; nothing is sent before the first episode.

        Args:
            teacher: The teacher's engine, or its base URL.
            top: Number of the teacher's likeliest ids to keep for each token; 0: none.
        """
        self._client = SGLangClient(teacher) if isinstance(teacher, str) else teacher
        self.top = top
        """Number of likeliest ids per token."""
        self._scorers: PerLoop[asyncio.Future[TeacherScorer]] = PerLoop()

    async def score(self, episode: Episode) -> None:
        """Set the teacher's logprobs in the tree of an episode.

        Raises:
            EngineError: The teacher did not answer at the first contact.
            ConfigurationError: `top` is larger than its vocabulary.
        """
        opening = self._scorers.get(lambda: asyncio.ensure_future(TeacherScorer.open(self._client, self.top)))
        try:
            scorer = await asyncio.shield(opening)
        except Exception:
            self._scorers.discard()  # the next episode tries again
            raise
        await scorer.score_episode(episode)
        if (why := scorer.report.failures.pop(episode.id, None)) is not None:
            logger.warning("episode=<%s>, error=<%s> | teacher could not score the episode", episode.id, why)
