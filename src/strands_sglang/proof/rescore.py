"""Recomputes recorded logprobs on a live engine and compares them: `rescore`, `RescoreReport`.

Each trajectory is sent to the engine once as a prompt, and the engine's logprob of every sampled token is compared with
the recorded one. This detects a changed token even if every digest was recomputed: the model assigns it another
probability than the recorded one.

At a temperature other than 1, and for kept sets, the likeliest ids of every position are
requested too: `tempered.py` says what they prove.

Invariant: every sampled token of the selected trajectories is compared once, or counted with the reason why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang._async import run_bounded
from strands_sglang._terminal import counted, escape_for_terminal
from strands_sglang.engine import SGLangClient
from strands_sglang.engine.prefill import vocabulary_size
from strands_sglang.engine.protocol import prompt_images
from strands_sglang.errors import EngineError, LedgerError, RequestRejectedError
from strands_sglang.ledger.files import FileStore
from strands_sglang.proof.call import KeptFacts, adapter_in
from strands_sglang.proof.episode import EpisodeProof
from strands_sglang.proof.tempered import PrefillFacts, Sampling, check_sets, logprob_bounds, outside
from strands_sglang.proof.trajectories import SAMPLED, FlatTrajectory
from strands_sglang.proof.verify import prove_run

TOLERANCE = 1e-3
"""Default maximum difference of two logprobs. An engine that computes in 32 bits stays well below it; one that computes
in 16 bits needs more, because it sums in another order in prefill than in decoding."""

_TOP = 512
"""Number of likeliest ids to request at a temperature other than 1."""
_TOP_UNKNOWN = 128
"""The same if the size of the vocabulary is unknown: the engine ends if it is asked for more ids than there are."""
_LARGEST_TOP = 4096
"""Size of the largest kept sets that an engine reports."""


class NotCompared(str, Enum):
    """Reason why a sampled token was not compared."""

    OTHER_VERSION = "other_version"
    """It was sampled with another weight version than the engine has now."""
    CONSTRAINED = "constrained"
    """It was sampled under a grammar, which changes its logprob; prompt logprobs do not include the grammar."""
    TEMPERATURE = "temperature"
    """It was sampled at a temperature at which the likeliest ids do not tell its logprob to within the tolerance. Its
    logprob is within the bounds that they give."""
    NO_ADAPTER = "no_adapter"
    """Its LoRA adapter is not loaded on the engine."""
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
    turn: int
    tokens: int
    largest: float
    mean: float
    beyond: int
    """Number of tokens whose difference exceeds the tolerance."""
    token: int
    """Position within the branch of the token with the largest difference."""
    sets: int = 0
    """Number of kept sets that were derived again."""
    wrong_sets: int = 0
    """Number of these that sampling would not have kept."""


@dataclass(slots=True)
class RescoreReport:
    """Recorded logprobs compared with those of a live engine. `text` is for people, `to_dict` for programs."""

    url: str
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
    temperature: float = 1.0
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
    def sets(self) -> int:
        """Number of kept sets that were derived again."""
        return sum(score.sets for score in self.turns)

    @property
    def mean(self) -> float:
        """Mean absolute difference over all compared tokens; 0 if nothing was compared."""
        return sum(score.mean * score.tokens for score in self.turns) / (self.tokens or 1)

    @property
    def verdict(self) -> RescoreVerdict:
        """Result of the comparison."""
        if any(score.beyond or score.wrong_sets for score in self.turns):
            return RescoreVerdict.DIFFERS
        missing = self.not_compared[NotCompared.REFUSED] + self.not_compared[NotCompared.NO_ADAPTER]
        whole = self.turns and not missing
        return RescoreVerdict.AGREES if whole else RescoreVerdict.NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "verdict": self.verdict.value,
            "url": self.url,
            "model": self.model,
            "weight_version": self.weight_version,
            "tolerance": self.tolerance,
            "temperature": self.temperature,
            "sets": self.sets,
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
        if self.sets:
            wrong = sum(score.wrong_sets for score in self.turns)
            lines.append(f"  kept sets    {self.sets:,} derived again, {wrong:,} differ")
        beyond = sorted((one for one in self.turns if one.beyond or one.wrong_sets), key=lambda one: -one.largest)
        lines += [
            f"    episode {score.episode}, turn {score.turn}: {score.beyond} of {score.tokens} tokens differ, "
            f"by {score.largest:.3g} at token {score.token}"
            + (f", and {counted(score.wrong_sets, 'kept set')}" if score.wrong_sets else "")
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
    adapters: Mapping[str, str] | None = None,
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
            than 0 and 1, the engine reports logprobs of scaled logits while sampling, but computes those of a prompt at
            temperature 1: they are compared as far as the likeliest ids tell them (`proof/tempered.py`).
        adapters: LoRA adapters that the engine has under another name than the recorded one; "" for merged weights.
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
        sampling = Sampling.of(_recorded_sampling(run), temperature)
        report.temperature = sampling.temperature
        vocabulary = await vocabulary_size(client.control)
        rescorer = _Rescorer(report, all_versions, sampling, FileStore(directory), vocabulary, adapters or {})
        chosen = (one for proof in proofs for one in rescorer.select(proof))
        await run_bounded(lambda one: rescorer.compare(client, *one), chosen, at_once)
    report.turns.sort(key=lambda score: (score.episode, score.turn))
    return report


class _Rescorer:
    """Selects the tokens to compare, requests their logprobs, and reports the differences."""

    def __init__(
        self,
        report: RescoreReport,
        all_versions: bool,
        sampling: Sampling,
        files: FileStore,
        vocabulary: int | None,
        adapters: Mapping[str, str],
    ) -> None:
        self._report = report
        self._adapters = adapters
        self._files = files
        self._all_versions = all_versions
        self._sampling, self._vocabulary = sampling, vocabulary

    def select(self, proof: EpisodeProof) -> list[tuple[FlatTrajectory, npt.NDArray[np.intp], str | None]]:
        """Return what to compare of an episode, and count the other positions.

        That is trajectories, each with positions and the adapter that sampled these (None: the base weights).
        """
        skipped, now, seen = self._report.not_compared, self._report.weight_version, set[int]()
        chosen = []
        self._report.episodes += 1
        for flat in proof.trajectories:
            fresh = np.array([id not in seen for id in flat.turn_ids])
            seen.update(flat.turn_ids)
            free = np.array([proof.turns[id].purpose != "constrained" for id in flat.turn_ids])
            ours = np.array([self._all_versions or _weights(name) == now for name in flat.version_names] + [False])
            named = [adapter_in(name) for name in flat.version_names]
            sampled = (flat.origins == SAMPLED) & fresh[flat.turns]
            constrained = sampled & ~free[flat.turns]
            other = sampled & free[flat.turns] & ~ours[flat.versions]
            skipped.update(
                {NotCompared.CONSTRAINED: int(constrained.sum()), NotCompared.OTHER_VERSION: int(other.sum())}
            )
            wanted = sampled & ~constrained & ~other
            for adapter in dict.fromkeys(named):
                mine = np.array([name == adapter for name in named] + [False])[flat.versions]
                positions = np.flatnonzero(wanted & mine)
                if len(positions):
                    chosen.append((flat, positions, adapter))
        return chosen

    async def compare(
        self, engine: SGLangClient, flat: FlatTrajectory, positions: npt.NDArray[np.intp], adapter: str | None
    ) -> None:
        """Recompute the logprobs of a trajectory with an adapter and report the differences at some positions."""
        first, last = int(positions[0]), int(positions[-1])
        kept = _part(flat.kept, positions)
        try:
            images = prompt_images((image for image in flat.images if image.start <= last), self._files.read)
            ids = flat.token_ids[: last + 1].tolist()
            loaded = None if adapter is None else self._adapters.get(adapter, adapter) or None
            whole = await engine.score(ids, first, images=images, top=self._top(kept), adapter=loaded)
        except (LedgerError, EngineError) as error:
            missing = isinstance(error, RequestRejectedError) and adapter is not None
            self._report.not_compared[NotCompared.NO_ADAPTER if missing else NotCompared.REFUSED] += len(positions)
            self._report.failures.append(f"episode {flat.episode}, branch {flat.branch}: {error!r:.300}")
            return
        rows = positions - first
        found = PrefillFacts(whole.logprobs[rows], whole.top_ids[rows], whole.top_logprobs[rows])
        differences, known = self._differences(flat.logprobs[positions], found)
        wrong = np.zeros(len(positions), bool)
        if kept is not None:
            # Without a top_k of its own, a request for kept sets has the largest one that engines accept.
            sampling = self._sampling if self._sampling.top_k >= 1 else replace(self._sampling, top_k=_LARGEST_TOP)
            sets = check_sets(kept, flat.token_ids[positions], found, sampling, self._vocabulary)
            differences, wrong = np.maximum(differences, sets.differences), sets.wrong
            known[:] = True  # a set is checked at any temperature
        self._report.not_compared[NotCompared.TEMPERATURE] += int((~known & (differences == 0.0)).sum())
        self._add(flat, positions, differences, known | (differences > 0.0), wrong, kept is not None)

    def _top(self, kept: KeptFacts | None) -> int:
        """Return how many likeliest ids are needed."""
        wanted = 0
        if self._sampling.scaled:
            wanted = _TOP if self._vocabulary is not None else _TOP_UNKNOWN
        if kept is not None:
            largest = int(np.diff(kept.offsets).max())
            # One more, to see that the next id was left out.
            wanted = max(wanted, min(largest if self._vocabulary is None else largest + 1, _LARGEST_TOP))
        return wanted if self._vocabulary is None else min(wanted, self._vocabulary)

    def _differences(
        self, recorded: npt.NDArray[np.float64], found: PrefillFacts
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return how far recorded logprobs are from what they can be, and whether that is known to the tolerance."""
        if not self._sampling.scaled:
            with np.errstate(invalid="ignore"):
                differences = np.abs(found.logprobs - recorded)
            differences[np.isnan(differences)] = np.inf  # a recorded NaN equals nothing
            return differences, np.ones(len(recorded), bool)
        low, high = logprob_bounds(found.logprobs, found.top_logprobs, self._sampling.inverse, self._vocabulary)
        return outside(recorded, low, high), high - low <= self._report.tolerance

    def _add(
        self,
        flat: FlatTrajectory,
        positions: npt.NDArray[np.intp],
        differences: npt.NDArray[np.float64],
        compared: npt.NDArray[np.bool_],
        wrong: npt.NDArray[np.bool_],
        sets: bool,
    ) -> None:
        """Add the turns of a trajectory to the report."""
        turns = flat.turns[positions]
        for number in np.unique(turns):
            mine = (turns == number) & compared
            if not mine.any():
                continue
            own = differences[mine]
            at = int(own.argmax())
            self._report.turns.append(
                TurnScore(
                    episode=flat.episode,
                    turn=flat.turn_ids[number],
                    tokens=len(own),
                    largest=float(own[at]),
                    mean=float(own.mean()),
                    beyond=int((~(own <= self._report.tolerance)).sum()),
                    token=int(positions[mine][at]),
                    sets=len(own) if sets else 0,
                    wrong_sets=int(wrong[mine].sum()),
                )
            )


def _weights(version: str | None) -> str | None:
    """Return the version of the base weights; None: unknown."""
    return version if version is None or "+lora:" not in version else version.partition("+lora:")[0] or None


def _part(kept: KeptFacts | None, positions: npt.NDArray[np.intp]) -> KeptFacts | None:
    """Return the kept sets at some positions; None if there are none."""
    if kept is None:
        return None
    sizes = np.diff(kept.offsets)
    wanted = np.zeros(len(sizes), bool)
    wanted[positions] = True
    offsets = np.concatenate([[0], np.cumsum(sizes[positions])]).astype(np.int32)
    return KeptFacts(kept.token_ids[np.repeat(wanted, sizes)], offsets, kept.logprobs[positions])


def _recorded_sampling(run: Any) -> Mapping[str, Any]:
    """Return the sampling parameters in run.json; empty if it has none."""
    settings = run.get("settings") if isinstance(run, dict) else None
    for place in ("sampling_params", "params"):
        sampling = settings.get(place) if isinstance(settings, dict) else None
        if isinstance(sampling, dict) and sampling:
            return sampling
    return {}
