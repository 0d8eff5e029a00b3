"""The date that a template writes is that of the episode's start, or the user's own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tokens import Join
from support.clock import Clock, set_clock
from support.provider.agents import acting, calculator

EOT = "<|eot_id|>"
CALL = '{"name": "calculator", "parameters": {"expression": "%d"}}'


@pytest.mark.parametrize("policy", ["keep", "fork", "refuse"])
async def test_an_audited_episode_that_spans_midnight_stays_proved(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    for day in ("17", "18"):
        agent, engine, tree = acting([CALL % 1, "One.", "Two."], "llama-3.2", end=EOT, on_template_rewrite=policy)
        await agent.invoke_async("a?")
        Clock.current = Clock.current.replace(day=18)
        await agent.invoke_async("b?")
        episode = agent.model.current_episode
        episode.last_audit.result()
        assert [turn.join for turn in tree] == [Join.ROOT, Join.PROVED, Join.PROVED]
        assert (episode.audits > 0, episode.audit_differences) == (True, 0)
        assert f"Today Date: {day} Nov 2026" in engine.prompts[-1]


async def test_a_reset_starts_a_new_day_unless_the_time_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    own, recorded = EpisodeTokens(), EpisodeTokens(time=datetime(2020, 1, 1))
    Clock.current = Clock.current.replace(day=18)
    assert own.time.day == 17
    for episode in (own, recorded):
        episode.reset()
    assert (own.time.day, recorded.time.year) == (18, 2020)


@pytest.mark.parametrize(
    ("arguments", "date"),
    [({"date_string": "1 May 1990"}, "1 May 1990"), ({"strftime_now": lambda form: f"<{form}>"}, "<%d %b %Y>")],
)
async def test_a_date_of_the_user_is_kept(arguments: dict[str, Any], date: str) -> None:
    agent, engine, _ = acting(["One."], "llama-3.2", end=EOT, tools=[calculator], chat_template_kwargs=arguments)
    await agent.invoke_async("a?")
    assert f"Today Date: {date}\n" in engine.prompts[0]
