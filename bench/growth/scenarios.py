"""The runs that are simulated for the page. Their figures are kept in `results.json`, from which the page is made."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from growth.model import POLICIES, Coefficients, Engines, Workload, predict, size
from growth.simulation import Events, Simulation

Row = dict[str, Any]


def rounded(found: dict[str, float]) -> dict[str, float]:
    """Return measurements with four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def workers_for(work: Workload, engines: Engines, known: Coefficients) -> int:
    """Return the number of rollout workers that `size` recommends."""
    return max(1, math.ceil(size(work, predict(work, engines, known).turns_per_second, known).cores))


def steady(work: Workload, engines: Engines, known: Coefficients) -> Row:
    """Return the prediction and the simulation of a run in which nothing fails."""
    predicted = predict(work, engines, known)
    simulation = Simulation(work, engines, known, workers=workers_for(work, engines, known))
    simulation.run(60)
    found = simulation.run(180)
    error = round(predicted.turns_per_second / found["turns_per_second"] - 1, 4)
    print(f"{work.episodes} episodes on {engines.engines} engines: error {error:+.1%}", flush=True)
    row = {"episodes": work.episodes, "engines": engines.engines, "model": predicted._asdict()}
    return {**row, "simulation": rounded(found), "error": error}


def policies(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> list[Row]:
    """Return the same run with different policies of the router, and two sizes of the engine's memory."""
    few = replace(engines, engines=10 if quick else 20)
    work = replace(work, episodes=100 * few.engines)
    rows = []
    for room in (1.6,) if quick else (1.6, 1.15):
        about = replace(few, kv_tokens=int(room * work.episodes * (work.context + work.sampled) / few.engines))
        for policy, by, *_ in POLICIES:
            workers = workers_for(work, about, known)
            simulation = Simulation(work, about, known, workers=workers, policy=policy, by=by, seed=3)
            simulation.run(60)
            rows.append({"policy": policy, "by": by, "room": room, **rounded(simulation.run(180))})
            print(f"room {room}, {policy} by {by}: {rows[-1]['turns_per_second']:.0f} turns/s", flush=True)
    return rows


def largest(work: Workload, engines: Engines, known: Coefficients) -> Row:
    """Return the whole run: engines and workers fail all the time, and weights are updated once."""
    update, end, often = 65.0, 150.0, 3 * 3600.0
    rare = Events(update_every=update, update_seconds=20.0, engine_mtbf=often, worker_mtbf=often)
    simulation = Simulation(work, engines, known, workers=workers_for(work, engines, known), events=rare)
    simulation.run(25)
    before, after = simulation.run(update), simulation.run(end)
    rate, predicted = before["turns_per_second"], predict(work, engines, known)
    missing = sum(5.0 * (rate - now) for at, now in simulation.series if at > update)
    resumed = [(at, now) for at, now in simulation.series if at > update + rare.update_seconds]
    back = next((round(at - update, 1) for at, now in resumed if now >= 0.9 * rate), None)
    return {
        "episodes": work.episodes,
        "engines": engines.engines,
        "events": asdict(rare),
        "seconds": end,
        "model": predicted._asdict(),
        "error": round(predicted.turns_per_second / rate - 1, 4),
        "before_update": rounded(before),
        "after_update": rounded(after),
        "update": {"lost_turns": round(missing), "lost_seconds": round(missing / rate, 1), "recovered_after": back},
        "series": [(at, round(now)) for at, now in simulation.series],
        "needs": size(work, rate, known, before["in_call"])._asdict(),
    }


def sizing(engines: Engines, known: Coefficients) -> list[Row]:
    """Return what runs of several sizes need; as many engines as their contexts and 100 episodes each allow."""
    rows = []
    sizes = [(1_000, 8), *((episodes, turns) for episodes in (10_000, 100_000) for turns in (8, 24, 60))]
    for episodes, turns in sizes:
        work = Workload(episodes=episodes, turns=turns, sampled=300, result=700 if turns == 60 else 500)
        each = min(100.0, 0.8 * engines.kv_tokens / (work.context + work.sampled))
        fleet = replace(engines, engines=max(1, math.ceil(episodes / each)))
        predicted = predict(work, fleet, known)
        in_call = min(1.0, predicted.turns_per_second * predicted.engine_seconds / episodes)
        needs = size(work, predicted.turns_per_second, known, in_call)._asdict()
        rows.append({"episodes": episodes, "turns": turns, "tokens": work.tokens, "engines": fleet.engines, **needs})
    return rows


def everything(work: Workload, engines: Engines, known: Coefficients, *, quick: bool) -> Row:
    """Run all simulations: growing fleets with the same load, growing load, policies, and the whole run."""
    each, ten = work.episodes // engines.engines, replace(engines, engines=10)
    fleets, loads = ((1, 10), (50, 150)) if quick else ((1, 10, 100), (25, 50, 75, 100, 150, 200, 250))
    whole = (replace(work, episodes=work.episodes // 50), replace(engines, engines=engines.engines // 50))
    return {
        "workload": asdict(work),
        "assumed_engine": asdict(engines),
        "growth": [steady(replace(work, episodes=n * each), replace(engines, engines=n), known) for n in fleets],
        "load": [steady(replace(work, episodes=10 * count), ten, known) for count in loads],
        "policies": policies(work, engines, known, quick=quick),
        "sizing": sizing(engines, known),
        "largest": largest(*(whole if quick else (work, engines)), known),
    }
