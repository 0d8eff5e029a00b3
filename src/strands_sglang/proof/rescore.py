"""A second opinion on recorded logprobs, from a live engine: `rescore`.

Each trajectory goes to the engine once more, whole and as a prompt; what it says of every token is held against what
is on record. A token that was changed, with every digest worked out anew, shows here: the model does not find it as
likely as the record says.

Invariant: only what can be compared is compared; the rest is counted, by why it cannot be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strands_sglang.engine.client import SGLangClient
from strands_sglang.engine.control import EngineControl
from strands_sglang.errors import EngineError, LedgerError
from strands_sglang.proof.calls import LARGEST_LOGPROB
from strands_sglang.proof.flat import SAMPLED, FlatTrajectory
from strands_sglang.proof.proofs import proofs
from strands_sglang.proof.prove import EpisodeProof
from strands_sglang.proof.rescore_report import NotCompared, RescoreReport, TurnScore

TOLERANCE = 1e-3
"""Largest difference that passes by default: an engine that computes in 32 bits stays well below. One that computes in
16 bits needs more, because it adds up in another order when it samples than when it reads."""

_COMPARABLE = (0.0, 1.0)  # at temperature 0 the engine reports logprobs of temperature 1


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
    """Ask an engine how likely it finds what is on record.

    Args:
        directory: The run's directory.
        url: Base URL of a server, or of a router, with the same model.
        episodes: Ids of the only episodes to look at; None: all.
        tolerance: Largest difference between two logprobs that passes.
        all_versions: Whether tokens that other weights sampled are compared too; by default only those of the
            version that the engine has now.
        temperature: What was sampled with; None: as run.json says, else 1. Other than at 0 and 1 the engine reports
            logprobs of scaled logits while sampling, and cannot be asked for them again: nothing is compared.
        at_once: Requests under way at once.

    Returns:
        The differences, turn by turn.

    Raises:
        LedgerError: There is no ledger to look at.
        EngineError: The engine does not say which model it has.
    """
    async with SGLangClient(url, max_retries=3) as client:
        info = await client.control.model_info()
        report = RescoreReport(client.base_url, info.model_path, info.weight_version, tolerance)
        run, found = proofs(Path(directory), episodes)
        if temperature is None:
            temperature = _temperature(run)
        asker = _Asker(report, all_versions, temperature)
        under_way: set[asyncio.Task[None]] = set()
        for proof in found:
            for flat, wanted in asker.wanted(proof):
                if len(under_way) >= at_once:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                under_way.add(asyncio.ensure_future(asker.ask(client.control, flat, wanted)))
        await asyncio.gather(*under_way)
    report.turns.sort(key=lambda score: (score.episode, score.turn))
    return report


class _Asker:
    """Decides what is compared, asks for it, and notes the differences."""

    def __init__(self, report: RescoreReport, all_versions: bool, temperature: float | None) -> None:
        self._report = report
        self._all_versions = all_versions
        self._scaled = temperature is not None and temperature not in _COMPARABLE

    def wanted(self, proof: EpisodeProof) -> list[tuple[FlatTrajectory, npt.NDArray[np.intp]]]:
        """Return the trajectories of an episode, each with the positions to be compared in it; counts the others."""
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
            places = np.flatnonzero(rest)
            if len(places) and not self._scaled:
                chosen.append((flat, places))
        return chosen

    async def ask(self, control: EngineControl, flat: FlatTrajectory, places: npt.NDArray[np.intp]) -> None:
        """Let the engine read a trajectory and note how its logprobs differ at some positions."""
        first, last = int(places[0]), int(places[-1])
        try:
            again = await _prefill(control, flat.token_ids[: last + 1].tolist(), first)
        except (LedgerError, EngineError) as error:
            self._report.not_compared[NotCompared.REFUSED] += len(places)
            self._report.failures.append(f"episode {flat.episode}, branch {flat.leaf}: {error!r:.300}")
            return
        with np.errstate(invalid="ignore"):
            differences = np.abs(again[places - first] - flat.logprobs[places])
        differences[np.isnan(differences)] = np.inf  # what is not a number on record agrees with nothing
        turns = flat.turns[places]
        for number in np.unique(turns):
            own = differences[turns == number]
            at = int(own.argmax())
            self._report.note(
                TurnScore(
                    episode=flat.episode,
                    turn=flat.turn_ids[number],
                    tokens=len(own),
                    largest=float(own[at]),
                    mean=float(own.mean()),
                    beyond=int((~(own <= self._report.tolerance)).sum()),
                    token=int(places[turns == number][at]),
                )
            )


async def _prefill(control: EngineControl, ids: list[int], start: int) -> npt.NDArray[np.float64]:
    """Return the logprobs of `ids[start:]`, read in one go."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
    }
    answer = await control.answer_to(body)
    try:
        entries = answer["meta_info"]["input_token_logprobs"][1:]
        told, logprobs = [entry[1] for entry in entries], _numbers([entry[0] for entry in entries])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise LedgerError(f"the engine gives no logprobs of its prompt: {error!r}") from error
    if told != ids[start:]:
        raise LedgerError("the engine gives logprobs of other tokens than it was asked for")
    return logprobs


def _numbers(values: list[Any]) -> npt.NDArray[np.float64]:
    """Return logprobs as an array.

    Raises:
        ValueError: One of them is no logprob: JSON has `null` for what is not a number, and it agrees with nothing.
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, float | int) or not -math.inf < value <= LARGEST_LOGPROB:
            raise ValueError(f"{value!r:.50} is not a logprob")
    return np.array(values, np.float64)


def _temperature(run: Any) -> float | None:
    """Return what a run says it sampled with; None when it does not."""
    settings = run.get("settings") if isinstance(run, dict) else None
    for place in ("sampling_params", "params"):
        sampling = settings.get(place) if isinstance(settings, dict) else None
        value = sampling.get("temperature") if isinstance(sampling, dict) else None
        if isinstance(value, int | float):
            return float(value)
    return None
