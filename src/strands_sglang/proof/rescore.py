"""Recomputes recorded logprobs on a live engine and compares them: `rescore`, `RescoreReport`.

Each trajectory is sent to the engine once as a prompt, and the engine's logprob of every sampled token is compared with
the recorded one. This detects a changed token even if every digest was recomputed: the model assigns it another
probability than the recorded one.

Invariant: every sampled token of the selected trajectories is compared once, or counted with the reason why not.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.engine.client import SGLangClient
from strands_sglang.engine.control import EngineControl
from strands_sglang.engine.protocol import PromptImage
from strands_sglang.engine.request import image_url
from strands_sglang.errors import EngineError, LedgerError
from strands_sglang.ledger.files import FileStore
from strands_sglang.proof.call import MAX_LOGPROB
from strands_sglang.proof.episode import EpisodeProof
from strands_sglang.proof.trajectories import SAMPLED, FlatTrajectory
from strands_sglang.proof.verify import prove_run
from strands_sglang.tokens.images import compact

TOLERANCE = 1e-3
"""Default maximum difference of two logprobs. An engine that computes in 32 bits stays well below it; one that computes
in 16 bits needs more, because it sums in another order in prefill than in decoding."""

_COMPARABLE = (0.0, 1.0)  # at temperature 0, the engine reports logprobs of temperature 1


class NotCompared(str, Enum):
    """Reason why a sampled token was not compared."""

    OTHER_VERSION = "other_version"
    """It was sampled with another weight version than the engine has now."""
    CONSTRAINED = "constrained"
    """It was sampled under a grammar, which changes its logprob; prompt logprobs do not include the grammar."""
    TEMPERATURE = "temperature"
    """It was sampled at a temperature other than 0 and 1, which changes its logprob; prompt logprobs do not."""
    REFUSED = "refused"
    """The engine returned no logprobs for its trajectory."""


class RescoreVerdict(str, Enum):
    """Result of a comparison."""

    AGREES = "agrees"
    """Every compared logprob is within the tolerance."""
    DIFFERS = "differs"
    """At least one compared logprob is not within the tolerance."""
    NOTHING = "nothing"
    """Nothing could be compared, or the engine returned no logprobs for some trajectories."""


@dataclass(frozen=True, slots=True)
class TurnScore:
    """Differences between recomputed and recorded logprobs of one turn."""

    episode: str
    """Id of the episode."""
    turn: int
    """Id of the turn."""
    tokens: int
    """Number of compared tokens."""
    largest: float
    """Largest absolute difference."""
    mean: float
    """Mean absolute difference."""
    beyond: int
    """Number of tokens whose difference exceeds the tolerance."""
    token: int
    """Position within the branch of the token with the largest difference."""


@dataclass(slots=True)
class RescoreReport:
    """Recorded logprobs compared with those of a live engine. `text` is for people, `to_dict` for programs."""

    url: str
    """Base URL of the engine."""
    model: str
    """Model that the engine reports."""
    weight_version: str | None
    """Weight version that the engine reports; None if it reports none."""
    tolerance: float
    """Maximum difference that is accepted."""
    episodes: int = 0
    """Number of selected episodes."""
    turns: list[TurnScore] = field(default_factory=list)
    """Turns with compared tokens, by episode and turn."""
    not_compared: Counter[NotCompared] = field(default_factory=Counter)
    """Sampled tokens that were not compared, by reason."""
    failures: list[str] = field(default_factory=list)
    """Errors of requests that returned no logprobs."""

    @property
    def tokens(self) -> int:
        """Number of compared tokens."""
        return sum(score.tokens for score in self.turns)

    @property
    def largest(self) -> float:
        """Largest absolute difference; 0 if nothing was compared."""
        return max((score.largest for score in self.turns), default=0.0)

    @property
    def mean(self) -> float:
        """Mean absolute difference over all compared tokens; 0 if nothing was compared."""
        return sum(score.mean * score.tokens for score in self.turns) / (self.tokens or 1)

    @property
    def verdict(self) -> RescoreVerdict:
        """Result of the comparison."""
        if any(score.beyond for score in self.turns):
            return RescoreVerdict.DIFFERS
        whole = self.turns and not self.not_compared[NotCompared.REFUSED]
        return RescoreVerdict.AGREES if whole else RescoreVerdict.NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "verdict": self.verdict.value,
            "url": self.url,
            "model": self.model,
            "weight_version": self.weight_version,
            "tolerance": self.tolerance,
            "episodes": self.episodes,
            "tokens": self.tokens,
            "largest": self.largest,
            "mean": self.mean,
            "not_compared": {why.value: self.not_compared[why] for why in NotCompared},
            "failures": self.failures,
            "turns": [asdict(score) for score in self.turns],
        }

    def text(self, turns: int = 10) -> str:
        """Return the report as text for people.

        Args:
            turns: Maximum number of turns beyond the tolerance to list, worst first.
        """
        left = ", ".join(f"{count:,} {why.value}" for why, count in self.not_compared.items() if count)
        lines = [
            f"{self.verdict.value.upper()}  {self.url}",
            f"  model        {self.model}, weights {self.weight_version or 'unknown'}",
            f"  compared     {counted(self.tokens, 'token')} of {counted(len(self.turns), 'turn')}, "
            f"{counted(self.episodes, 'episode')}",
            f"  not compared {left or 'none'}",
            f"  difference   largest {self.largest:.3g}, mean {self.mean:.3g}, tolerance {self.tolerance:g}",
        ]
        beyond = sorted((score for score in self.turns if score.beyond), key=lambda score: -score.largest)
        lines += [
            f"    episode {score.episode}, turn {score.turn}: {score.beyond} of {score.tokens} tokens differ, "
            f"by {score.largest:.3g} at token {score.token}"
            for score in beyond[:turns]
        ]
        lines += [f"    and {counted(len(beyond) - turns, 'more turn')}"] if len(beyond) > turns else []
        lines += [f"    {failure}" for failure in self.failures[:turns]]
        return "\n".join(map(escape_for_terminal, lines))


async def rescore(
    directory: str | Path,
    url: str,
    *,
    episodes: Collection[str] | None = None,
    tolerance: float = TOLERANCE,
    all_versions: bool = False,
    temperature: float | None = None,
    at_once: int = 16,
) -> RescoreReport:
    """Recompute the logprobs of recorded tokens on an engine and compare them.

    Args:
        directory: Directory of the run.
        url: Base URL of a server or router that serves the same model.
        episodes: Ids of the episodes to compare; None: all.
        tolerance: Maximum accepted difference between two logprobs.
        all_versions: Whether to compare tokens of other weight versions too. By default only tokens sampled with the
            engine's current version are compared.
        temperature: Temperature of sampling; None: the one in run.json, or 1 if it has none. At temperatures other
            than 0 and 1, the engine reports logprobs of scaled logits while sampling and cannot recompute them from a
            prompt, so nothing is compared.
        at_once: Maximum number of concurrent requests.

    Returns:
        The differences of each turn.

    Raises:
        LedgerError: The directory contains no ledger.
        EngineError: The engine does not report its model.
    """
    async with SGLangClient(url, max_retries=3) as client:
        info = await client.control.model_info()
        report = RescoreReport(client.base_url, info.model_path, info.weight_version, tolerance)
        run, proofs = prove_run(Path(directory), episodes)
        if temperature is None:
            temperature = _temperature(run)
        rescorer = _Rescorer(report, all_versions, temperature, FileStore(directory))
        tasks: set[asyncio.Task[None]] = set()
        for proof in proofs:
            for flat, positions in rescorer.select(proof):
                if len(tasks) >= at_once:
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                tasks.add(asyncio.ensure_future(rescorer.compare(client.control, flat, positions)))
        await asyncio.gather(*tasks)
    report.turns.sort(key=lambda score: (score.episode, score.turn))
    return report


class _Rescorer:
    """Selects the tokens to compare, requests their logprobs, and reports the differences."""

    def __init__(self, report: RescoreReport, all_versions: bool, temperature: float | None, files: FileStore) -> None:
        self._report = report
        self._files = files
        self._all_versions = all_versions
        self._scaled = temperature is not None and temperature not in _COMPARABLE

    def select(self, proof: EpisodeProof) -> list[tuple[FlatTrajectory, npt.NDArray[np.intp]]]:
        """Return the trajectories of an episode, each with the positions to compare; count the other positions."""
        skipped, now, seen = self._report.not_compared, self._report.weight_version, set[int]()
        chosen = []
        self._report.episodes += 1
        for flat in proof.trajectories:
            fresh = np.array([id not in seen for id in flat.turn_ids])
            seen.update(flat.turn_ids)
            free = np.array([proof.turns[id].purpose != "constrained" for id in flat.turn_ids])
            ours = np.array([self._all_versions or name == now for name in flat.version_names] + [False])
            sampled = (flat.origins == SAMPLED) & fresh[flat.turns]
            constrained = sampled & ~free[flat.turns]
            other = sampled & free[flat.turns] & ~ours[flat.versions]
            rest = sampled & ~constrained & ~other
            skipped.update(
                {
                    NotCompared.CONSTRAINED: int(constrained.sum()),
                    NotCompared.OTHER_VERSION: int(other.sum()),
                    NotCompared.TEMPERATURE: int(rest.sum()) if self._scaled else 0,
                }
            )
            positions = np.flatnonzero(rest)
            if len(positions) and not self._scaled:
                chosen.append((flat, positions))
        return chosen

    async def compare(self, control: EngineControl, flat: FlatTrajectory, positions: npt.NDArray[np.intp]) -> None:
        """Recompute the logprobs of a trajectory and report the differences at some positions."""
        first, last = int(positions[0]), int(positions[-1])
        try:
            images = [
                PromptImage(image.start, image.positions, self._files.read(image.digest), image.digest)
                for image in flat.images
                if image.start <= last
            ]
            again = await prefill_logprobs(control, flat.token_ids[: last + 1].tolist(), first, images)
        except (LedgerError, EngineError) as error:
            self._report.not_compared[NotCompared.REFUSED] += len(positions)
            self._report.failures.append(f"episode {flat.episode}, branch {flat.leaf}: {error!r:.300}")
            return
        with np.errstate(invalid="ignore"):
            differences = np.abs(again[positions - first] - flat.logprobs[positions])
        differences[np.isnan(differences)] = np.inf  # a recorded NaN equals nothing
        turns = flat.turns[positions]
        for number in np.unique(turns):
            own = differences[turns == number]
            at = int(own.argmax())
            self._report.turns.append(
                TurnScore(
                    episode=flat.episode,
                    turn=flat.turn_ids[number],
                    tokens=len(own),
                    largest=float(own[at]),
                    mean=float(own.mean()),
                    beyond=int((~(own <= self._report.tolerance)).sum()),
                    token=int(positions[turns == number][at]),
                )
            )


async def prefill_logprobs(
    control: EngineControl, ids: list[int], start: int, images: Sequence[PromptImage] = ()
) -> npt.NDArray[np.float64]:
    """Return the engine's logprobs of `ids[start:]`, from one prefill request.

    Args:
        control: Sends the request.
        ids: The ids, with a placeholder for every position of an image.
        start: First position whose logprob is returned.
        images: The images among them. The logprobs of their placeholders mean nothing.

    Raises:
        LedgerError: The engine returned no prompt logprobs, or those of other tokens.
        EngineError: The engine did not answer.
    """
    body: dict[str, Any] = {
        "input_ids": compact(array("i", ids), images).tolist() if images else ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
    }
    if images:
        body |= {"image_data": [image_url(image.png) for image in images], "return_prompt_token_ids": True}
    answer = await control.answer_to(body)
    if images and answer.get("prompt_token_ids") != ids:
        raise LedgerError("the engine computed other ids than those of the trajectory, or does not report them")
    try:
        entries = answer["meta_info"]["input_token_logprobs"][1:]
        for image in images:  # the engine reports token 0 for its positions
            for at in range(max(image.start, start), image.start + image.positions):
                entries[at - start] = [0.0, ids[at]]
        tokens, logprobs = [entry[1] for entry in entries], _numbers([entry[0] for entry in entries])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise LedgerError(f"the engine returned no prompt logprobs: {error!r}") from error
    if tokens != ids[start:]:
        raise LedgerError("the engine returned logprobs of other tokens than those in the request")
    return logprobs


def _numbers(values: list[Any]) -> npt.NDArray[np.float64]:
    """Return logprobs as an array.

    Raises:
        ValueError: A value is not a logprob. JSON has `null` for NaN.
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, float | int) or not -math.inf < value <= MAX_LOGPROB:
            raise ValueError(f"{value!r:.50} is not a logprob")
    return np.array(values, np.float64)


def _temperature(run: Any) -> float | None:
    """Return the sampling temperature in run.json, or None if it has none."""
    settings = run.get("settings") if isinstance(run, dict) else None
    for place in ("sampling_params", "params"):
        sampling = settings.get(place) if isinstance(settings, dict) else None
        value = sampling.get("temperature") if isinstance(sampling, dict) else None
        if isinstance(value, int | float):
            return float(value)
    return None
