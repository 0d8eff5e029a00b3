"""What a run needs, computed from measured coefficients: throughput, cores, memory, network, ledger.

`Workload` and `Engines` describe a run. `predict` solves for the turns per second at which the episodes, each waiting
for the engine, its worker and its tools in turn, keep the engines as busy as they are; `size` multiplies the measured
costs with it. The simulation (`simulation.py`) draws the same run event by event; the two share only these inputs.

The engine is an assumption, not a measurement: every number of `Engines` is an option of `python bench/growth`.
`coefficients.json` holds each measured cost; `python bench/growth --measure` writes it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).resolve().parent / "coefficients.json"
_UTILIZATION = 0.6  # of the rollout cores: bursts, the garbage collector and resumed episodes need the rest
_SHARD_BYTES = 256 * 2**20
_DAY = 86_400

POLICIES = (
    ("least", "task", "manual, min_group", "`manual` with `--assignment-mode min_group`"),
    ("least", "episode", "the same, a key per episode", "the same, with a key per episode"),
    ("random key", "task", "manual as it comes", "`manual` as it comes: a new key goes to a random engine"),
    ("hash", "task", "consistent_hashing", "`consistent_hashing`"),
    ("cache", "episode", "cache_aware", "`cache_aware`: by prompt, moved while loads differ"),
    ("scatter", "task", "random, round_robin", "`random`, `round_robin`; or a key that changes with every request"),
)
"""Policy and key of the simulation, and what they stand for in the router, in short and in full."""


@dataclass(frozen=True)
class Coefficients:
    """Costs of this package and the Strands SDK; linear in what they multiply. A name has the unit, then the cause."""

    cpu_ms_episode: float
    cpu_ms_turn: float
    cpu_us_earlier_turn: float
    """CPU microseconds of a turn for each turn before it."""
    cpu_us_prompt_token: float
    """Of each token of a request, including those that earlier requests had."""
    cpu_us_sampled_token: float
    cpu_us_context_token: float
    """Of each new context token: rendering, encoding, recording."""
    memory_kb_episode: float
    memory_kb_turn: float
    memory_bytes_token: float
    wire_up_bytes_turn: float
    wire_up_bytes_token: float
    wire_down_bytes_turn: float
    wire_down_bytes_token: float
    ledger_bytes_episode: float
    ledger_bytes_turn: float
    ledger_bytes_sampled: float
    ledger_bytes_context: float
    driver_ms_episode: float
    """CPU milliseconds of the driver per finished episode, with Ray workers."""
    driver_kb_episode: float
    """KB that the driver holds per finished episode, until you drop the `RunResult`."""
    driver_seal_s_mtoken: float
    """CPU seconds of the driver for sealing the ledger at the end of a run, per million tokens."""
    worker_start_seconds: float

    def turn_cpu_ms(self, turns: float, context: float, sampled: float, result: float) -> float:
        """Return the mean CPU milliseconds of a turn: `context` is the mean prompt, `result` the new context tokens."""
        tokens = self.cpu_us_prompt_token * context + self.cpu_us_sampled_token * sampled
        tokens += self.cpu_us_context_token * result + self.cpu_us_earlier_turn * (turns - 1) / 2
        return self.cpu_ms_episode / turns + self.cpu_ms_turn + tokens / 1e3


def load(path: Path = FILE) -> Coefficients:
    """Return the coefficients of a file."""
    stored = json.loads(path.read_text())
    return Coefficients(**{name: stored[name]["value"] for name in Coefficients.__dataclass_fields__})


def save(values: Coefficients, sources: dict[str, str], about: dict[str, Any], path: Path = FILE) -> None:
    """Write coefficients, with how each kind was measured, and on which machine."""
    stored = {
        name: {"value": round(value, 4), "unit": name.partition("_")[2]} for name, value in asdict(values).items()
    }
    path.write_text(json.dumps({"about": about, "measured_with": sources, **stored}, indent=1) + "\n")


@dataclass(frozen=True)
class Workload:
    """The episodes of a run. Sampled and result tokens of a turn are lognormal, and so are the seconds of a tool."""

    episodes: int = 100_000
    """Episodes at the same time."""
    turns: int = 24
    sampled: int = 300
    """Mean number of sampled tokens per turn."""
    result: int = 500
    """Mean number of context tokens that a turn adds, mostly the tool result."""
    prompt: int = 2_000
    """Tokens of system prompt, tools and task."""
    spread: float = 0.8
    """Standard deviation of the logarithm of sampled and result tokens."""
    tool_median: float = 2.0
    tool_spread: float = 1.2
    """Standard deviation of the logarithm: with 1.2, one call in a hundred takes 16 times the median."""
    tool_limit: float = 300.0
    """Timeout of a tool call in seconds."""
    samples: int = 8
    """Episodes per task; they share the prompt, and by default the routing key."""

    @property
    def tool_mean(self) -> float:
        """Mean duration of a tool call in seconds; the timeout is neglected."""
        return self.tool_median * math.exp(self.tool_spread**2 / 2)

    @property
    def tokens(self) -> int:
        """Tokens of an episode at its end."""
        return self.prompt + self.turns * self.sampled + (self.turns - 1) * self.result

    @property
    def context(self) -> float:
        """Mean number of tokens of a prompt, over the turns of an episode."""
        return self.prompt + (self.turns - 1) / 2 * (self.sampled + self.result)


@dataclass(frozen=True)
class Engines:
    """The engines. All values are assumptions about GPUs: measure your own with SGLang's `bench_serving`."""

    engines: int = 1_000
    """Number of engines; an engine is one server, on as many GPUs as it needs."""
    tokens_per_second: float = 6_000.0
    """Tokens that an engine samples per second with a full batch."""
    batch: int = 128
    """Most requests that it samples at the same time."""
    step_ms: float = 10.0
    """Milliseconds per token with a single request."""
    prefill_tokens_per_second: float = 20_000.0
    """Prompt tokens that it computes per second, while sampling waits."""
    kv_tokens: int = 2_000_000
    """Tokens whose keys and values fit in its memory: those of running requests, and the prefix cache."""

    def step(self, requests: float) -> float:
        """Return the seconds that a token takes with this many requests at the same time."""
        full = self.batch / self.tokens_per_second
        single = min(full, self.step_ms / 1e3)
        return single + (full - single) * max(0.0, requests - 1) / max(1, self.batch - 1)


class Prediction(NamedTuple):
    """The steady state of a run."""

    turns_per_second: float
    engine_seconds: float
    """Seconds from request to response."""
    running: float
    """Requests that an engine works on at the same time."""
    hit: float
    """Share of the earlier tokens of a conversation that its engine still has in its cache."""
    limit: str
    """What keeps the run from being faster: "episodes" (all of them run), "engine", "cache" (conversations are evicted
    before they return, and computed again every time), or "rollout cores"."""
    prefill: float
    """Share of the time of an engine that goes into prompts."""


class Needs(NamedTuple):
    """What a run needs besides its engines."""

    turns_per_second: float
    cores: float
    """Cores of rollout workers, at most 60 % used."""
    driver_cores: float
    """Cores of the process that calls `rollout`; above 1, use several."""
    memory_gb: float
    gbit_up: float
    gbit_down: float
    ledger_tb_day: float
    files_day: float
    """Files of the ledger per day, if a run takes an hour."""


State = tuple[float, float, float, float, float]
"""Episodes, seconds of a request, running requests, cache hits, and share of time that goes into prompts."""


def predict(work: Workload, engines: Engines, known: Coefficients, cores: float = math.inf) -> Prediction:
    """Return the steady state of a run; `cores` are those of the rollout workers."""
    each = work.episodes / engines.engines
    tools = work.tool_mean * (work.turns - 1) / work.turns  # no tool after the last turn
    cpu = known.turn_cpu_ms(work.turns, work.context, work.sampled, work.result) / 1e3
    rate, state, full = _solved(each, work, engines, tools + cpu, None)
    limit = "engine" if full else "episodes"
    if full and each * (work.context + work.sampled) > engines.kv_tokens:
        # Requests wait for the engine, and their conversations are evicted meanwhile.
        rate, state, _ = _solved(each, work, engines, tools + cpu, 0.0)
        limit = "cache"
    _, seconds, running, hit, prefill = state
    total = rate * engines.engines
    if cores / cpu < total:
        total, limit = cores / cpu, "rollout cores"
    return Prediction(total, each / rate - tools - cpu if full else seconds, running, hit, limit, prefill)


def _solved(
    each: float, work: Workload, engines: Engines, elsewhere: float, hit: float | None
) -> tuple[float, State, bool]:
    """Return the turns per second of an engine with `each` episodes, its state, and whether it cannot be faster."""
    low, high = 0.0, 1.0 / (work.sampled * engines.step(engines.batch) / engines.batch)
    best: State = (0.0, 0.0, 0.0, 1.0, 0.0)
    for _ in range(60):
        rate = (low + high) / 2
        state = _at_rate(rate, work, engines, elsewhere, hit)
        if state is None or state[0] > each:
            high = rate
        else:
            low, best = rate, state
    return low, best, _at_rate(low * 1.01, work, engines, elsewhere, hit) is None


def _at_rate(rate: float, work: Workload, engines: Engines, elsewhere: float, fixed: float | None) -> State | None:
    """Return the state of an engine at a rate of turns; None: it cannot be that fast. `fixed`: its cache hits."""
    new = work.result + work.prompt / work.turns / work.samples  # prompt tokens that were never computed before
    hit, single, slope = 1.0 if fixed is None else fixed, engines.step(1), engines.step(2) - engines.step(1)
    for _ in range(50):
        uncached = new + (1 - hit) * work.context
        prefill = rate * uncached / engines.prefill_tokens_per_second
        left = 1 - prefill - rate * work.sampled * slope
        running = rate * work.sampled * (single - slope) / left if left > 0 else math.inf
        room = engines.kv_tokens - (work.context + work.sampled) * running
        if prefill >= 1 or running > engines.batch or room <= 0:
            return None
        if fixed is None:
            hit += 0.5 * (_hits(room / (rate * (work.context + work.sampled)), work) - hit)
    wait = uncached / engines.prefill_tokens_per_second
    seconds = running / rate + wait + wait * prefill / max(1e-9, 2 * (1 - prefill))
    return rate * (seconds + elsewhere), seconds, running, hit, prefill


def _hits(age: float, work: Workload) -> float:
    """Return the share of conversations that come back before they are evicted.

    Evicted is what was not used for the time T with E[min(tool, T)] = age, the mean time that the cache can hold a
    conversation while its tool runs.
    """
    if age >= work.tool_mean:
        return 1.0
    low, high = 1e-9, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        at = math.log(middle / work.tool_median) / work.tool_spread
        below = work.tool_mean * _normal(at - work.tool_spread) + middle * (1 - _normal(at))
        low, high = (middle, high) if below < age else (low, middle)
    return _normal(math.log(low / work.tool_median) / work.tool_spread)


def _normal(at: float) -> float:
    return 0.5 * (1 + math.erf(at / math.sqrt(2)))


def size(work: Workload, rate: float, known: Coefficients, in_call: float = 0.5) -> Needs:
    """Return what a run needs at a rate of turns per second; `in_call` of its episodes wait for the engine."""
    cores = rate * known.turn_cpu_ms(work.turns, work.context, work.sampled, work.result) / 1e3 / _UTILIZATION
    live = 1024 * (known.memory_kb_episode + known.memory_kb_turn * work.turns / 2)
    live += known.memory_bytes_token * (work.context + work.sampled / 2)
    live += in_call * known.wire_up_bytes_token * work.context
    up = known.wire_up_bytes_turn + known.wire_up_bytes_token * work.context
    down = known.wire_down_bytes_turn + known.wire_down_bytes_token * work.sampled
    ledger = known.ledger_bytes_turn + known.ledger_bytes_episode / work.turns
    ledger += known.ledger_bytes_sampled * work.sampled
    ledger += known.ledger_bytes_context * (work.result + work.prompt / work.turns)
    per_day, bits = rate * ledger * _DAY, rate * 8 / 1e9
    # Each worker has at least one shard and one index file per run.
    files = 2 * max(24 * max(1, math.ceil(cores)), per_day / _SHARD_BYTES)
    driver = rate / work.turns * known.driver_ms_episode / 1e3
    return Needs(rate, cores, driver, work.episodes * live / 1e9, bits * up, bits * down, per_day / 1e12, files)
