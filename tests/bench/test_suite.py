"""The parts of `bench/run`: statistics, recording and replaying, the report and its page."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import figures
from loopback_process import AgentLoopback
from played_agent import TOKENIZER
from suite import command
from suite.agents import OTHERS, OURS
from suite.environments import Environment, Unavailable, own
from suite.page import BEGIN, END, PageError, write_page
from suite.processes import Contestant, JobFailed
from suite.recorder import Exchange, Recorder, cached_share, conversations, replay
from suite.report import goals, last_line
from suite.stats import Spread, alternate, ratio, shown


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5, 1, 2, 3, 4]) == Spread(3, 2, 4, 5)
    assert Spread.of([7]) == Spread(7, 7, 7, 1)
    assert shown(Spread.of([1, 2, 3]).to_json()) == "2.00 (1.50–2.50)" and shown(None) == "–"
    with pytest.raises(ValueError, match="must not be empty"):
        Spread.of([])


def test_ratios_are_computed_within_a_round() -> None:
    # The machine is ten times slower in the second round.
    assert ratio([2, 20, 2], [1, 10, 1]) == Spread(2, 2, 2, 3)


def test_ways_alternate_and_the_first_round_is_a_warm_up() -> None:
    order: list[str] = []

    def run(way: str, number: int) -> dict[str, float]:
        order.append(way)
        return {"cost": float(len(order))}

    found = alternate(["a", "b"], 2, run)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": {"cost": [4.0, 5.0]}, "b": {"cost": [3.0, 6.0]}}


def exchange(prompt: list[int], sampled: list[int], cached: int, began: float) -> Exchange:
    body = json.dumps({"input_ids": prompt}).encode()
    return Exchange(
        b"POST /generate HTTP/1.1\r\n\r\n" + body,
        {"output_ids": sampled, "meta_info": {"cached_tokens": cached}},
        began,
    )


def test_conversations_are_found_by_their_tokens() -> None:
    rng = random.Random(0)
    one = [
        exchange([1, 2], [3], 0, 0.0),
        exchange([1, 2, 3, 9], [4], 2, 2.0),
        exchange([1, 2, 3, 9, 4, 9], [5], 4, 4.0),
    ]
    two = [exchange([1, 2], [7], 1, 1.0), exchange([1, 2, 7, 9], [8], 1, 3.0)]
    mixed = [*one, *two]
    rng.shuffle(mixed)
    assert conversations(mixed) == [one, two]
    # Turns after the first: 2 of 2, 4 of 4 and 1 of 2. The second conversation has the first one's prompt: 1 of 1.
    assert cached_share([one, two]) == (7 / 8, 1.0)


async def test_what_is_recorded_can_be_sent_again() -> None:
    with (
        AgentLoopback(TOKENIZER, [2], tokens=48) as server,
        Recorder(server.urls[2]) as recorder,
        Contestant(own(), str(TOKENIZER)) as contestant,
    ):
        job = {"turns": 3, "episodes": 4, "at_once": 4}
        await asyncio.to_thread(contestant.run, way="rollout", url=recorder.url, **job)
        chains = [chain for chain in conversations(recorder.exchanges) if len(chain) > 1]
        assert sorted(map(len, chains)) == [3] * 4
        seconds, sampled = await replay(server.urls[2], [[one.request for one in chain] for chain in chains])
        assert sampled == 4 * 3 * 48 and seconds > 0
        with pytest.raises(JobFailed, match="made 12 turns, not 2 each"):
            await asyncio.to_thread(contestant.run, way="plain", url=server.urls[2], **{**job, "turns": 2})
        calls = await asyncio.to_thread(contestant.run, way="bare", count_calls=True, **job)
        assert calls["calls"] > 100


def test_a_missing_environment_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from suite.environments import published

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="is not installed"):
        published(install=False)
    assert "PYTHONPATH" not in Environment("python", "").variables()


def value(median: float) -> dict[str, float]:
    return {"median": median, "low": median * 0.9, "high": median * 1.1, "rounds": 5}


def result(**parts: Any) -> dict[str, Any]:
    machine = {"date": "2026-01-01", "cores": 2, "cpu": "cpu <one>", "versions": {"python": "3.11"}}
    return {"machine": machine, "left_out": {"the engine": "not installed"}, **parts}


def agents() -> dict[str, Any]:
    ways = ("bare", "sdk", "inside", "plain_inside", "rollout", "plain")
    names = (
        "all_over_bare",
        "all_without_http_over_bare",
        "plain_over_bare",
        "plain_layer_over_bare",
        "layer_over_bare",
    )
    layer: dict[str, Any] = {name: value(1.2) for name in names}
    layer |= {"cpu_ms": {way: value(2) for way in ways}}
    layer["calls"] = {"bare": 1, "rollout": 2, "plain": 3}
    over = {f"{other}_over_{way}": value(2.5) for other in ("published", "openai") for way in OURS}
    costs = {way: value(3) for way in OTHERS}
    row = {"turns": 8, "context": 8000, "cpu_ms": costs, "wall_ms": costs, "cpu_over": over, "wall_over": over}
    versions = dict.fromkeys(("python", "strands-agents", "strands-sglang", "transformers", "openai"), "1")
    others = {"rows": [row], "ours": versions, "published": versions}
    return {"layers": {turns: layer for turns in ("1", "8", "32", "128")}, "others": others, "date": "2026-01-01"}


def test_the_last_line_has_the_promised_keys() -> None:
    line = last_line(result(agents=agents(), engine={"ours_over_bare_wall": value(1.01)}))
    assert line["all_over_bare"] == {"1": 1.2, "8": 1.2, "32": 1.2, "128": 1.2}
    assert line["ours_over_engine_wall"] == 1.01 and line["published_over_ours_cpu"] == 2.5
    nothing = last_line(result())
    assert set(nothing["all_over_bare"].values()) == {None} and nothing["ours_over_engine_wall"] is None
    assert nothing["published_over_ours_cpu"] is None and nothing["left_out"]
    assert all(goal.met is None for goal in goals(result()))


def test_a_goal_is_met_from_its_own_side() -> None:
    found = agents()
    found["others"]["rows"][0]["cpu_over"]["published_over_fast"] = value(1.2)
    met = {goal.name: goal.met for goal in goals(result(agents=found))}
    assert met["`rollout` / bare SDK, 128 turns"] is False
    assert met["0.6.2 / ours, CPU of a turn, in `rollout`, 8 turns, 8k context"] is True
    assert met["0.6.2 / ours, CPU of a turn, in `fast_agents`, 8 turns, 8k context"] is False


def test_a_page_keeps_its_text(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    page = tmp_path / "operate" / "speed.md"
    page.parent.mkdir()
    page.write_text("no place for it")
    with pytest.raises(PageError, match="must contain"):
        write_page(result(agents=agents()), page)
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write_page(result(agents=agents()), page)
    text = page.read_text()
    assert text.startswith("before\n\n" + BEGIN) and text.endswith(END + "\n\nafter\n") and "old" not in text
    assert "1.20 (1.08–1.32)" in text and "the engine: not installed" in text
    for name in ("speed-layers.svg", "speed-others.svg"):
        assert f"../images/{name}" in text
        assert ElementTree.fromstring((tmp_path / "images" / name).read_text()).tag.endswith("svg")
    once = page.read_text()
    write_page(result(agents=agents()), page)
    assert page.read_text() == once


def test_the_saved_result_makes_the_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not command.SAVED.exists():
        pytest.skip("nothing was measured yet")
    monkeypatch.setattr("sys.argv", ["bench/run", "--from", str(command.SAVED)])
    assert command.main() == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"all_over_bare", "ours_over_engine_wall", "published_over_ours_cpu"} <= set(line)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench/run", "--only", "agents,speed"])
    with pytest.raises(SystemExit):
        command.main()
    assert "got speed" in capsys.readouterr().err


MEASURED = json.loads((figures.ROOT / "bench" / "measured.json").read_text())


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: str(page.relative_to(figures.ROOT)))
def test_page_states_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert figures.filled(text, MEASURED) == text, "run: python bench/figures.py --write"
    assert text.count("<!--m:") == text.count("<!--/m-->") == len(figures._MARK.findall(text)), "a mark is malformed"
    assert not [line for line in text.splitlines() if line.lstrip().startswith("<!--m:")], (
        "Markdown takes such a line for HTML"
    )


def test_speed_page_is_made_from_the_file(tmp_path: Path) -> None:
    page = figures.ROOT / "docs" / "operate" / "speed.md"
    (tmp_path / "images").mkdir()
    made = tmp_path / "operate" / "speed.md"
    made.parent.mkdir()
    made.write_text(page.read_text())
    write_page(MEASURED, made)
    assert made.read_text() == page.read_text(), (
        "run: bench/run --from bench/measured.json --page docs/operate/speed.md"
    )


def test_another_value_is_replaced_and_an_unknown_figure_raises() -> None:
    measured = {"long": {"ms": {"median": 3.14159, "low": 3}}, "calls": [{"ratio": 2}]}
    page = "It takes <!--m:long.ms .1f-->9<!--/m--> ms, <!--m:calls.0.ratio--><!--/m--> times."
    assert figures.filled(page, measured) == (
        "It takes <!--m:long.ms .1f-->3.1<!--/m--> ms, <!--m:calls.0.ratio-->2<!--/m--> times."
    )
    with pytest.raises(KeyError):
        figures.filled("<!--m:long.hours-->1<!--/m-->", measured)
