"""Against the bare engine: the lab's SGLang server, 64 episodes of 6 turns with a tool, all at the same time.

The exact requests of a run are recorded; a client that only posts prepared bytes sends the same requests with the same
dependencies. Both alternate on an engine whose prefix cache is emptied before each run; their wall times are compared.
The episodes are greedy, so that every run asks the engine for the same tokens. Others run the same episodes.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from agent_script import tokenizer_from
from scripted_agent import text_of
from suite.environments import Unavailable, beside_published, own, published
from suite.processes import LAB, Contestant, Engine, JobFailed
from suite.recorder import Recorder, cached_share, conversations, replay
from suite.report import Log
from suite.stats import Spread, alternate, ratio
from suite.wire import accepted

TASKS, SAMPLES, TURNS = 16, 4, 6
"""Different tasks, episodes of each, and turns of an episode: the policy calls its tool twice for the first question
of a conversation and answers the others at once."""
_QUESTIONS = 4
_SYSTEM_TOKENS = 200
ENGINE_FLAGS = ("--tool-call-parser", "qwen25", "--enable-cache-report")


def job(tokenizer: str) -> dict[str, Any]:
    """Return the episodes."""
    sys.path.append(str(LAB / "tool_policy"))
    import task

    asked = [
        [task.sample_task(random.Random(f"{number}/{place}")).question for place in range(_QUESTIONS)]
        for number in range(TASKS)
    ]
    return {
        "asked": asked,
        "samples": SAMPLES,
        "at_once": TASKS * SAMPLES,
        "turns": 0,
        "system": text_of(tokenizer_from(tokenizer), _SYSTEM_TOKENS),
        "sampling": {"max_new_tokens": 64, "temperature": 0.0},
    }


def measure(tokenizer: str, quick: bool, log: Log) -> dict[str, Any]:
    """Measure; empty if there is no engine, or if the run is to be quick."""
    if quick:
        log.left_out("the engine", "not part of --quick")
        return {}
    try:
        with Engine(*ENGINE_FLAGS) as engine:
            return on_engine(engine, tokenizer, log)
    except Unavailable as error:
        log.left_out("the engine", str(error))
        return {}


def on_engine(engine: Engine, tokenizer: str, log: Log, rounds: int = 5) -> dict[str, Any]:
    """Measure on a running engine."""
    episodes = job(tokenizer)
    log.head(f"the lab's engine, {TASKS * SAMPLES} episodes of {TURNS} turns at once")
    with ExitStack() as stack:
        home = {"rollout": stack.enter_context(Contestant(own(), tokenizer, -1))}
        home["plain"] = home["rollout"]
        try:
            ours, theirs = beside_published(install=True), published(install=True)
            home["published"] = stack.enter_context(Contestant(theirs, tokenizer, -1))
            home["openai"] = stack.enter_context(Contestant(ours, tokenizer, -1))
        except (Unavailable, JobFailed) as error:
            log.left_out("the published package and OpenAIModel on the engine", str(error))
        found, prepared = _recorded(engine, home, episodes, log)

        def run(way: str, number: int) -> Mapping[str, float]:
            engine.flush_cache()
            if way == "bare":
                seconds, sampled = asyncio.run(replay(engine.url, prepared))
                return {"wall_s": seconds, "sampled": float(sampled)}
            return home[way].run(way=way, url=engine.url, **episodes)

        ways = ["bare", *(way for way in home if way in found["ways"])]
        measured = alternate(ways, rounds, run, warm_up=False)  # recording was the warm-up
    bare = measured["bare"]["wall_s"]
    for way in ways:
        figures = {"wall_s": Spread.of(measured[way]["wall_s"]).to_json()}
        figures["sampled"] = Spread.of(measured[way]["sampled"]).to_json()
        if way != "bare":
            figures["cpu_ms"] = Spread.of(measured[way]["cpu_ms"]).to_json()
            figures["turns"] = Spread.of(measured[way]["turns"]).to_json()
            figures["wall_over_bare"] = ratio(measured[way]["wall_s"], bare).to_json()
        if way == "openai":
            figures["cached"] = Spread.of(measured[way]["cached"]).to_json()
        found["ways"][way] = {**found["ways"].get(way, {}), **figures}
        spreads = {"wall s": Spread.of(measured[way]["wall_s"]), "over bare": ratio(measured[way]["wall_s"], bare)}
        log.row(way, spreads)
    found["compressed_bodies"] = accepted(engine.url)
    log.row("compressed bodies", found["compressed_bodies"])
    found["ours_over_bare_wall"] = found["ways"]["rollout"]["wall_over_bare"]
    found["cached_share"] = Spread.of([found["ways"]["rollout"]["cached_share"]]).to_json()
    return found


def _recorded(
    engine: Engine, home: dict[str, Contestant], episodes: dict[str, Any], log: Log
) -> tuple[dict[str, Any], list[list[bytes]]]:
    """Run every way once through the recorder; return what was recorded, and the requests of `rollout` to replay."""
    found: dict[str, Any] = {"ways": {}}
    prepared: list[list[bytes]] = []
    for way, contestant in home.items():
        try:
            if way == "openai":  # it streams; the engine reports its cached tokens with the usage
                figures = contestant.run(way=way, url=engine.url, **episodes)
                found["ways"][way] = {}
                log.row(f"{way}, warm-up", {"turns": figures["turns"]})
                continue
            with Recorder(engine.url) as recorder:
                contestant.run(way=way, url=recorder.url, **episodes)  # checks of the server, caches
                engine.flush_cache()
                recorder.exchanges.clear()
                contestant.run(way=way, url=recorder.url, **episodes)
        except JobFailed as error:
            log.left_out(f"{way} on the engine", str(error))
            continue
        chains = [chain for chain in conversations(recorder.exchanges) if len(chain) > 1]
        on_turns, on_siblings = cached_share(chains)
        found["ways"][way] = {
            "conversations": len(chains),
            "requests": sum(map(len, chains)),
            "cached_share": round(on_turns, 4),
            "sibling_share": round(on_siblings, 4),
        }
        log.row(f"{way}, recorded", found["ways"][way])
        if way == "rollout":
            prepared = [[exchange.request for exchange in chain] for chain in chains]
            found["requests"] = len(recorder.exchanges)
            found["turns"] = {str(size): sum(len(chain) == size for chain in chains) for size in set(map(len, chains))}
    return found, prepared
