"""What a run needs, computed from measured coefficients: throughput, cores, memory, network, ledger.

`Workload` and `Engines` describe a run. `predict` solves for the turns per second at which the episodes, each waiting
for the engine, its worker and its tools in turn, keep the engines as busy as they are; `size` multiplies the measured
costs with it. The simulation (`simulation.py`) draws the same run event by event; the two share only these inputs.

The engine is an assumption, not a measurement: every number of `Engines` is an option of `python bench/growth`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from growth.coefficients import Coefficients

_UTILIZATION = 0.6  # of the rollout cores: bursts, the garbage collector and resumed episodes need the rest
_SHARD_BYTES = 256 * 2**20
_DAY = 86_400

POLICIES = (
    ("least", "task", "`manual` with `--assignment-mode min_group`"),
    ("least", "episode", "the same, with a key per episode"),
    ("random key", "task", "`manual` as it comes: a new key goes to a random engine"),
    ("hash", "task", "`consistent_hashing`"),
    ("cache", "episode", "`cache_aware`: by prompt, moved while loads differ"),
    ("scatter", "task", "`random`, `round_robin`; or a key that changes with every request"),
)
"""Policy and key of the simulation, and what they stand for in the router."""


@dataclass(frozen=True)
class Workload:
    """The episodes of a run."""

    episodes: int = 100_000
    """Episodes at the same time."""
    turns: int = 24
    """Mean number of turns of an episode."""
    sampled: int = 300
    """Mean number of sampled tokens per turn; drawn from a lognormal distribution with `spread`."""
    result: int = 500
    """Mean number of context tokens that a turn adds, mostly the tool result; drawn in the same way."""
    prompt: int = 2_000
    """Tokens of system prompt, tools and task."""
    spread: float = 0.8
    """Standard deviation of the logarithm of sampled and result tokens."""
    tool_median: float = 2.0
    """Median duration of a tool call in seconds."""
    tool_spread: float = 1.2
    """Standard deviation of its logarithm: with 1.2, one call in a hundred takes 16 times the median."""
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
    """The engines. All values are assumptions about GPUs: measure your own with `strands-sglang bench`."""

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


@dataclass
class Prediction:
    """The steady state of a run."""

    turns_per_second: float
    """Turns per second of all episodes together."""
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


@dataclass
class Needs:
    """What a run needs besides its engines."""

    turns_per_second: float
    cores: float
    """Cores of rollout workers, at most 60 % used."""
    driver_cores: float
    """Cores of the process that calls `rollout`; above 1, use several."""
    memory_gb: float
    """Memory of the live episodes on the rollout machines, in GB."""
    gbit_up: float
    """Gbit/s of requests."""
    gbit_down: float
    """Gbit/s of responses."""
    ledger_tb_day: float
    """TB of ledger per day."""
    files_day: float
    """Files of the ledger per day, if a run takes an hour."""
    details: dict[str, float] = field(default_factory=dict)


def predict(work: Workload, engines: Engines, known: Coefficients, cores: float = math.inf) -> Prediction:
    """Return the steady state of a run.

    Args:
        work: The episodes.
        engines: The engines.
        known: The measured coefficients.
        cores: Rollout cores; infinity: they are never the limit.
    """
    each = work.episodes / engines.engines
    tools = work.tool_mean * (work.turns - 1) / work.turns  # no tool after the last turn
    cpu = known.turn_cpu_ms(work.turns, work.context, work.sampled, work.result) / 1e3
    new = work.result + work.prompt / work.turns / work.samples
    rate, state, full = _solved(each, work, engines, new, tools + cpu)
    limit = "engine" if full else "episodes"
    if full and each * (work.context + work.sampled) > engines.kv_tokens:
        # Requests wait for the engine, and their conversations are evicted meanwhile.
        rate, state, _ = _solved(each, work, engines, new, tools + cpu, hit=0.0)
        limit = "cache"
    _, seconds, running, hit, prefill = state
    total = rate * engines.engines
    if cores / cpu < total:
        total, limit = cores / cpu, "rollout cores"
    if full:
        seconds = each / rate - tools - cpu
    return Prediction(total, seconds, running, hit, limit, prefill)


def _solved(
    each: float, work: Workload, engines: Engines, new: float, elsewhere: float, hit: float | None = None
) -> tuple[float, tuple[float, float, float, float, float], bool]:
    """Return the turns per second of an engine with `each` episodes, its state, and whether it cannot be faster.

    Args:
        each: Episodes per engine.
        work: The episodes.
        engines: The engines.
        new: Prompt tokens of a turn that were never computed before.
        elsewhere: Seconds of a turn outside of the engine.
        hit: Cache hits; None: those that follow from the rate.
    """
    low, high = 0.0, 1.0 / (work.sampled * engines.step(engines.batch) / engines.batch)
    best = (0.0, 0.0, 0.0, 1.0, 0.0)
    for _ in range(60):
        rate = (low + high) / 2
        state = _at_rate(rate, work, engines, new, elsewhere, hit)
        if state is None or state[0] > each:
            high = rate
        else:
            low, best = rate, state
    return low, best, _at_rate(low * 1.01, work, engines, new, elsewhere, hit) is None


def _at_rate(
    rate: float, work: Workload, engines: Engines, new: float, elsewhere: float, fixed: float | None
) -> tuple[float, float, float, float, float] | None:
    """Return the episodes that an engine needs for a rate of turns, and its state; None: it cannot be that fast.

    Returns:
        Episodes, seconds of a request, running requests, cache hits, and share of time that goes into prompts.
    """
    hit = 1.0 if fixed is None else fixed
    running = 0.0
    for _ in range(50):
        uncached = new + (1 - hit) * work.context
        prefill = rate * uncached / engines.prefill_tokens_per_second
        free = 1 - prefill
        single, slope = engines.step(1), engines.step(2) - engines.step(1)
        left = free - rate * work.sampled * slope
        if free <= 0 or left <= 0:
            return None
        running = rate * work.sampled * (single - slope) / left
        if running > engines.batch:
            return None
        held = (work.context + work.sampled) * running
        room = engines.kv_tokens - held
        if room <= 0:
            return None
        if fixed is None:
            hit += 0.5 * (_hits(room / (rate * (work.context + work.sampled)), work) - hit)
    wait = uncached / engines.prefill_tokens_per_second
    seconds = running / rate + wait + wait * prefill / max(1e-9, 2 * free)
    return rate * (seconds + elsewhere), seconds, running, hit, prefill


def _hits(age: float, work: Workload) -> float:
    """Return the share of conversations that come back before they are evicted.

    Evicted is what was not used for the time T with E[min(tool, T)] = age, the mean time that the cache can hold a
    conversation while its tool runs.
    """
    if age >= work.tool_mean:
        return 1.0
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_below(middle, work) < age else (low, middle)
    return _share_below(low, work)


def _share_below(seconds: float, work: Workload) -> float:
    """Return the share of tool calls that are shorter."""
    if seconds <= 0:
        return 0.0
    return 0.5 * (1 + math.erf(math.log(seconds / work.tool_median) / work.tool_spread / math.sqrt(2)))


def _mean_below(seconds: float, work: Workload) -> float:
    """Return the mean of min(tool, seconds)."""
    if seconds <= 0:
        return 0.0
    at = (math.log(seconds / work.tool_median) - work.tool_spread**2) / work.tool_spread
    below = work.tool_mean * 0.5 * (1 + math.erf(at / math.sqrt(2)))
    return below + seconds * (1 - _share_below(seconds, work))


def size(work: Workload, rate: float, known: Coefficients, in_call: float = 0.5) -> Needs:
    """Return what a run needs at a rate of turns.

    Args:
        work: The episodes.
        rate: Turns per second of all episodes.
        known: The measured coefficients.
        in_call: Share of the episodes that wait for the engine; their request is in memory, too.
    """
    cpu = known.turn_cpu_ms(work.turns, work.context, work.sampled, work.result) / 1e3
    cores = rate * cpu / _UTILIZATION
    mean_tokens = work.context + work.sampled / 2
    live = (
        known.memory_kb_episode + known.memory_kb_turn * work.turns / 2 + known.memory_bytes_token * mean_tokens / 1024
    )
    live += in_call * known.wire_up_bytes_token * work.context / 1024
    up = known.wire_up_bytes_turn + known.wire_up_bytes_token * work.context
    down = known.wire_down_bytes_turn + known.wire_down_bytes_token * work.sampled
    ledger = (
        known.ledger_bytes_turn
        + known.ledger_bytes_episode / work.turns
        + known.ledger_bytes_sampled * work.sampled
        + known.ledger_bytes_context * (work.result + work.prompt / work.turns)
    )
    workers = max(1.0, math.ceil(cores))
    per_day = rate * ledger * _DAY
    return Needs(
        turns_per_second=rate,
        cores=cores,
        driver_cores=rate / work.turns * known.driver_ms_episode / 1e3,
        memory_gb=work.episodes * live * 1024 / 1e9,
        gbit_up=rate * up * 8 / 1e9,
        gbit_down=rate * down * 8 / 1e9,
        ledger_tb_day=per_day / 1e12,
        # Each worker has at least one shard and one index file per run.
        files_day=2 * max(24 * workers, per_day / _SHARD_BYTES),
        details={
            "turn_cpu_ms": 1e3 * cpu,
            "episode_kb": live,
            "request_kb": up / 1024,
            "response_kb": down / 1024,
            "ledger_bytes_turn": ledger,
        },
    )
