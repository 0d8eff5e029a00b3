"""The runs that are simulated for the page. Their figures are kept in `results.json`, from which the page is made."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from growth.coefficients import Coefficients
from growth.model import POLICIES, Engines, Workload, predict, size
from growth.simulation import Events, Outcome, Simulation


def rounded(outcome: Outcome) -> dict[str, float]:
    """Return measurements with four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in asdict(outcome).items()}


def workers_for(work: Workload, engines: Engines, known: Coefficients) -> int:
    """Return the number of rollout workers that `size` recommends."""
    return max(1, math.ceil(size(work, predict(work, engines, known).turns_per_second, known).cores))


def steady(work: Workload, engines: Engines, known: Coefficients, *, warmup: float, seconds: float) -> dict[str, Any]:
    """Return the prediction and the simulation of a run in which nothing fails."""
    predicted = predict(work, engines, known)
    workers = workers_for(work, engines, known)
    simulation = Simulation(work, engines, known, workers=workers)
    simulation.run(warmup)
    outcome = simulation.run(warmup + seconds)
    return {
        "episodes": work.episodes,
        "engines": engines.engines,
        "workers": workers,
        "model": {name: value for name, value in asdict(predicted).items()},
        "simulation": rounded(outcome),
        "error": round(predicted.turns_per_second / outcome.turns_per_second - 1, 4),
    }


def growth(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> list[dict[str, Any]]:
    """Return runs of growing size with the same number of episodes per engine; the largest is in `largest`."""
    each, rows = work.episodes / engines.engines, []
    for count in (1, 10) if quick else (1, 10, 100):
        smaller = replace(work, episodes=round(count * each))
        rows.append(steady(smaller, replace(engines, engines=count), known, warmup=60, seconds=120))
        print(f"{smaller.episodes} episodes: error {rows[-1]['error']:+.1%}", flush=True)
    return rows


def load(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> list[dict[str, Any]]:
    """Return runs with more and more episodes per engine."""
    rows = []
    for each in (50, 150) if quick else (25, 50, 75, 100, 150, 200, 250):
        busier = replace(work, episodes=10 * each)
        rows.append(steady(busier, replace(engines, engines=10), known, warmup=60, seconds=120))
        print(f"{each} episodes per engine: error {rows[-1]['error']:+.1%}", flush=True)
    return rows


def policies(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> list[dict[str, Any]]:
    """Return the same run with different policies of the router, and two sizes of the engine's memory."""
    few = replace(engines, engines=10 if quick else 20)
    work = replace(work, episodes=100 * few.engines)
    need = work.episodes * (work.context + work.sampled) / few.engines
    rows = []
    for room in (1.6,) if quick else (1.6, 1.15):
        about = replace(few, kv_tokens=int(room * need))
        for policy, by, _ in POLICIES:
            simulation = Simulation(
                work, about, known, workers=workers_for(work, about, known), policy=policy, by=by, seed=3
            )
            simulation.run(60)
            outcome = simulation.run(180)
            rows.append({"policy": policy, "by": by, "room": room, **rounded(outcome)})
            print(f"room {room}, {policy} by {by}: {outcome.turns_per_second:.0f} turns/s, {outcome.cached:.0%} cached")
    return rows


def largest(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> dict[str, Any]:
    """Return the whole run: engines and workers fail all the time, and weights are updated once."""
    if quick:
        work, engines = replace(work, episodes=work.episodes // 50), replace(engines, engines=engines.engines // 50)
    warmup, update, end = 25.0, 65.0, 150.0
    workers = workers_for(work, engines, known)
    often = 3 * 3600.0
    rare = Events(update_every=update, update_seconds=20.0, engine_mtbf=often, worker_mtbf=often)
    simulation = Simulation(work, engines, known, workers=workers, events=rare)
    simulation.run(warmup)
    before = simulation.run(update)
    print(f"{work.episodes} episodes, before the update: {before.turns_per_second:.0f} turns/s", flush=True)
    after = simulation.run(end)
    predicted = predict(work, engines, known)
    missing = sum(5.0 * (before.turns_per_second - rate) for at, rate in simulation.series if at > update)
    back = [at for at, rate in simulation.series if at > update + rare.update_seconds]
    recovered = next(
        (
            at
            for at, rate in simulation.series
            if at > update + rare.update_seconds and rate >= 0.9 * before.turns_per_second
        ),
        math.nan,
    )
    return {
        "episodes": work.episodes,
        "engines": engines.engines,
        "workers": workers,
        "events": asdict(rare),
        "seconds": end,
        "model": asdict(predicted),
        "error": round(predicted.turns_per_second / before.turns_per_second - 1, 4),
        "before_update": rounded(before),
        "after_update": rounded(after),
        "update": {
            "lost_turns": round(missing),
            "lost_seconds": round(missing / before.turns_per_second, 1),
            "recovered_after": None if math.isnan(recovered) else round(recovered - update, 1),
            "series_seconds": [back[0] if back else None, end],
        },
        "series": [(at, round(rate)) for at, rate in simulation.series],
        "needs": asdict(size(work, before.turns_per_second, known, before.in_call)),
    }


def sizing(engines: Engines, known: Coefficients) -> list[dict[str, Any]]:
    """Return what runs of several sizes need; as many engines as their contexts and 100 episodes each allow."""
    rows = []
    for episodes, turns, sampled, result in (
        (1_000, 8, 300, 500),
        (10_000, 8, 300, 500),
        (10_000, 24, 300, 500),
        (10_000, 60, 300, 700),
        (100_000, 8, 300, 500),
        (100_000, 24, 300, 500),
        (100_000, 60, 300, 700),
    ):
        work = Workload(episodes=episodes, turns=turns, sampled=sampled, result=result)
        each = min(100.0, 0.8 * engines.kv_tokens / (work.context + work.sampled))
        fleet = replace(engines, engines=max(1, math.ceil(episodes / each)))
        predicted = predict(work, fleet, known)
        in_call = predicted.turns_per_second * predicted.engine_seconds / episodes
        needs = size(work, predicted.turns_per_second, known, min(1.0, in_call))
        rows.append(
            {"episodes": episodes, "turns": turns, "tokens": work.tokens, "engines": fleet.engines, **asdict(needs)}
        )
    return rows


def everything(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> dict[str, Any]:
    """Run all simulations."""
    return {
        "quick": quick,
        "workload": asdict(work),
        "assumed_engine": asdict(engines),
        "growth": growth(work, engines, known, quick=quick),
        "load": load(work, engines, known, quick=quick),
        "policies": policies(work, engines, known, quick=quick),
        "sizing": sizing(engines, known),
        "largest": largest(work, engines, known, quick=quick),
    }
