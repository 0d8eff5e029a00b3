"""pass@k, mean rewards and their intervals, against enumeration, tables and simulation."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from strands_sglang.errors import ConfigurationError
from strands_sglang.runs import EndReason
from strands_sglang.runs.offline.evaluation import (
    RecordedScore,
    RecordedTask,
    evaluate,
    mean_interval,
    pass_at_k,
    t_quantile,
    wilson_interval,
)


def scored(id: str, reward: float | None, end_reason: EndReason = EndReason.ANSWERED) -> RecordedScore:
    return RecordedScore(RecordedTask(id), reward, end_reason)


def episodes(**rewards: Sequence[float | None]) -> list[RecordedScore]:
    return [scored(id, one) for id, values in rewards.items() for one in values]


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_counts_subsets(samples: int) -> None:
    for passed in range(samples + 1):
        outcomes = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    rng, chance, k = random.Random(5), 0.2, 4
    runs = [pass_at_k(8, sum(rng.random() < chance for _ in range(8)), k) for _ in range(4000)]
    assert math.fsum(runs) / len(runs) == pytest.approx(1 - (1 - chance) ** k, abs=0.02)


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [  # printed tables of Student's t
        *((0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 9, 2.262), (0.95, 30, 2.042)),
        *((0.99, 1, 63.657), (0.99, 4, 4.604), (0.90, 5, 2.015), (0.95, 120, 1.980), (0.95, 10**6, 1.960)),
    ],
)
def test_t_quantiles(confidence: float, freedom: int, expected: float) -> None:
    assert t_quantile(confidence, freedom) == pytest.approx(expected, abs=6e-4)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = random.Random(7)
    hits = shares = 0
    for _ in range(2000):
        bounds = mean_interval([rng.gauss(1.0, 2.0) for _ in range(5)])
        assert bounds is not None
        hits += bounds[0] <= 1.0 <= bounds[1]
        around = wilson_interval(sum(rng.random() < 0.3 for _ in range(20)), 20)
        assert around is not None
        shares += around[0] <= 0.3 <= around[1]
    assert 0.93 < hits / 2000 < 0.97 and 0.92 < shares / 2000 < 0.99


def test_wilson() -> None:
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert wilson_interval(5, 5) == pytest.approx((0.5655, 1.0), abs=1e-3) and wilson_interval(0, 0) is None


def test_no_interval_without_spread() -> None:
    assert mean_interval([]) is mean_interval([1.0]) is mean_interval([0.5, 0.5, 0.5]) is None
    assert mean_interval([0.0, 1.0]) == pytest.approx((0.5 - 6.353, 0.5 + 6.353), abs=1e-3)


def test_an_evaluation() -> None:
    found = evaluate(episodes(a=[1.0, 0.0, 0.0, 0.0], b=[1.0, 1.0, 0.5, 1.0], c=[0.0, 0.0, 0.0, 0.0]), ks=(1, 4))
    assert [task.id for task in found.tasks] == ["a", "b", "c"]
    assert found.reward.value == pytest.approx((0.25 + 0.875 + 0) / 3) and found.reward.count == 3
    assert found.reward.interval == mean_interval([0.25, 0.875, 0.0])
    assert found.pass_at[1].value == pytest.approx((0.25 + 0.75 + 0) / 3)
    assert found.pass_at[4].value == pytest.approx(2 / 3)
    low, high = found.pass_at[4].interval or (0.0, 0.0)
    assert (low, high) == (0.0, 1.0)  # clipped: probabilities
    first = found.tasks[0]
    assert first.pass_at[1].interval == wilson_interval(1, 4) and first.pass_at[4].interval is None
    assert found.tasks[2].reward.interval is None


def test_tasks_are_the_units_not_episodes() -> None:
    alike = evaluate(episodes(**{f"t{n}": [float(n % 2)] * 16 for n in range(8)}))
    few = evaluate(episodes(**{f"t{n}": [float(n % 2)] for n in range(8)}))
    assert alike.reward == few.reward  # sixteen copies of a result are no more evidence than one


def test_all_tasks_pass() -> None:
    found = evaluate(episodes(a=[1.0, 1.0], b=[1.0, 1.0]))
    assert found.reward.interval is None and found.pass_at[2].interval == wilson_interval(2, 2)


def test_one_task_has_the_interval_of_its_samples() -> None:
    found = evaluate(episodes(a=[1.0, 0.0, 1.0]))
    assert found.reward.interval == mean_interval([1.0, 0.0, 1.0]) and list(found.pass_at) == [1, 2, 3]


def test_episodes_without_a_reward() -> None:
    ended = [*episodes(a=[1.0, None], b=[0.0, 0.0]), scored("c", None, EndReason.ENGINE_ERROR)]
    found = evaluate(ended)
    assert (found.episodes, found.scored, found.unscored) == (5, 3, 2)
    assert found.reward.value == 0.5 and found.reward.count == 2 and found.pass_at[2].count == 1
    assert "2 without a reward, left out" in found.text() and found.end_reasons == {"answered": 4, "engine_error": 1}
    zero = evaluate(ended, unscored_as_zero=True)
    assert zero.reward.value == pytest.approx(0.5 / 3) and "2 without a reward, counted as 0" in zero.text()


def test_nothing() -> None:
    found = evaluate([])
    assert found.reward.value is None and found.pass_at[1].value is None and "0 episodes of 0 tasks" in found.text()
    assert found.markdown() and json.dumps(found.to_dict())


@pytest.mark.parametrize("wrong", [{"confidence": 1.0}, {"confidence": 0}, {"ks": (0,)}, {"threshold": math.nan}])
def test_wrong_arguments(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        evaluate([], **wrong)  # type: ignore[arg-type]


def test_text_and_markdown() -> None:
    found = evaluate(episodes(**{"a|b`<i>": [1.0, 0.0], "c": [1.0, 1.0]}), ks=(1, 2), threshold=0.5)
    shown = found.text()
    assert "an episode passes with a reward of at least 0.5" in shown and "95% interval" in shown
    assert "mean reward  0.75 [" in shown and "2 of 2" in shown
    assert found.text(most=1).endswith("and 1 more task")
    table = found.markdown()
    assert r"| a\|b\`&lt;i&gt; | 2 of 2 | 1 |" in table and "|---|---|---|" in table
