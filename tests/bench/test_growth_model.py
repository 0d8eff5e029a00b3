"""The model of growth: its limits, what it multiplies, and the page that is made from it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from costs import fit
from growth.model import FILE, Coefficients, Engines, Workload, load, predict, save, size
from growth.page import BLOCKS, filled
from growth.plots import load_plot, policy_plot, update_plot

ROOT = Path(__file__).resolve().parent.parent.parent
KNOWN = load()


def test_coefficients_are_stored_with_their_source(tmp_path: Path) -> None:
    assert all(value >= 0 for value in asdict(KNOWN).values()) and KNOWN.cpu_ms_turn > 0
    stored = json.loads(FILE.read_text())
    assert {name.partition("_")[0] for name in asdict(KNOWN)} == set(stored["measured_with"])
    save(KNOWN, stored["measured_with"], stored["about"], tmp_path / "same.json")
    assert load(tmp_path / "same.json") == KNOWN


def test_few_episodes_wait_and_many_saturate_the_engine() -> None:
    engines = Engines(engines=10, kv_tokens=100_000_000)
    rates = []
    for each in (5, 50, 100, 400, 1000):
        predicted = predict(Workload(episodes=10 * each), engines, KNOWN)
        rates.append(predicted.turns_per_second)
    assert rates == sorted(rates)
    alone = predict(Workload(episodes=10), engines, KNOWN)
    assert alone.limit == "episodes" and alone.engine_seconds == pytest.approx(300 * 0.01, rel=0.1)
    assert predicted.limit == "engine" and rates[-1] == pytest.approx(rates[-2], rel=0.02)
    # It never samples more tokens than it can.
    assert rates[-1] * 300 <= 10 * engines.tokens_per_second
    # All episodes are somewhere: Little's law.
    work = Workload(episodes=1000)
    predicted = predict(work, engines, KNOWN)
    elsewhere = work.tool_mean * (work.turns - 1) / work.turns
    assert predicted.turns_per_second * (predicted.engine_seconds + elsewhere) == pytest.approx(1000, rel=0.01)


def test_small_cache_lowers_hits_and_rate() -> None:
    work = Workload(episodes=1000)
    large, small = (predict(work, Engines(engines=10, kv_tokens=tokens), KNOWN) for tokens in (2_000_000, 900_000))
    assert large.hit == pytest.approx(1.0) and small.hit < 0.9
    assert small.turns_per_second < large.turns_per_second
    # With more conversations than it has room for, an engine computes all of them again and again.
    crowded = predict(replace(work, episodes=2500), Engines(engines=10), KNOWN)
    assert crowded.limit == "cache" and crowded.hit == 0.0
    assert crowded.turns_per_second < 0.3 * large.turns_per_second


def test_rollout_cores_can_be_the_limit() -> None:
    work, engines = Workload(episodes=1000), Engines(engines=10)
    free = predict(work, engines, KNOWN)
    needed = size(work, free.turns_per_second, KNOWN).cores
    limited = predict(work, engines, KNOWN, cores=needed / 4)
    assert limited.limit == "rollout cores" and limited.turns_per_second < free.turns_per_second


def test_needs_grow_with_their_causes() -> None:
    work = Workload(episodes=1000)
    needs, twice = size(work, 100.0, KNOWN), size(work, 200.0, KNOWN)
    for name in ("cores", "driver_cores", "gbit_up", "gbit_down", "ledger_tb_day"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(needs, name))
    assert twice.memory_gb == needs.memory_gb
    assert size(replace(work, episodes=2000), 100.0, KNOWN).memory_gb == pytest.approx(2 * needs.memory_gb)
    longer = size(replace(work, turns=48), 100.0, KNOWN)
    assert longer.gbit_up > 1.5 * needs.gbit_up and longer.gbit_down == pytest.approx(needs.gbit_down)


def test_fit_finds_coefficients_and_none_below_zero() -> None:
    ones, turns = [1.0] * 5, [1.0, 4.0, 9.0, 16.0, 30.0]
    found, off = fit([ones, turns], [2.0 + 3.0 * turn for turn in turns])
    assert found == pytest.approx([2.0, 3.0]) and off < 1e-9
    found, _ = fit([ones, turns], [3.0 * turn - 0.5 for turn in turns])
    assert found[0] == 0.0 and found[1] > 0


def test_page_is_made_from_the_stored_figures() -> None:
    results = json.loads((FILE.parent / "results.json").read_text())
    page = (ROOT / "docs" / "operate" / "scale.md").read_text()
    assert filled(page, results, KNOWN) == page, "run: python bench/growth --page docs/operate/scale.md"
    assert all(f"<!-- growth: {name} -->" in page for name in BLOCKS)
    assert results["largest"]["episodes"] == 100_000 and results["largest"]["engines"] == 1_000
    pictures = (load_plot(results["load"]), update_plot(results["largest"]), policy_plot(results["policies"]))
    assert all(picture.startswith("<svg") and picture.endswith("</svg>\n") for picture in pictures)


def test_coefficients_of_a_turn_add_up() -> None:
    known = Coefficients(**{**asdict(KNOWN), "cpu_ms_episode": 10.0, "cpu_ms_turn": 2.0, "cpu_us_earlier_turn": 100.0})
    known = replace(known, cpu_us_prompt_token=1.0, cpu_us_sampled_token=2.0, cpu_us_context_token=3.0)
    assert known.turn_cpu_ms(5, 1000, 100, 200) == pytest.approx(10 / 5 + 2 + 0.2 + 1 + 0.2 + 0.6)
