"""On the real engine: drift of recorded runs equals what the first measurement of it says of the same episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from strands_sglang import SGLangClient
from strands_sglang.drift import Cause, Method, html_page, measure
from strands_sglang.runs import Limits, rollout
from support.agent_episodes import Played, drift
from support.examples import size
from support.lab_servers import LAB, LabProcess
from support.rollout_agent import SAMPLING, TURNS, build, score, tasks

pytestmark = pytest.mark.engine

EPISODES = size(250, 500)


@pytest.mark.parametrize("checkpoint", ["canonical", "noncanonical"])
async def test_many_episodes(checkpoint: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: LabProcess = request.getfixturevalue("tool_policy" if checkpoint == "canonical" else "noncanonical")
    tokenizer = AutoTokenizer.from_pretrained(str(LAB / "tool_policy" / checkpoint))
    async with SGLangClient(server.url) as client:
        run = await rollout(
            build, tasks(EPISODES, seed=7_000), tokenizer=tokenizer, client=client, reward=score, concurrency=64,
            limits=Limits(max_turns=TURNS), directory=tmp_path, sampling_params=SAMPLING,
        )  # fmt: skip
    played = [Played(episode, episode.messages, 0.0, "") for episode in run]  # type: ignore[arg-type]
    before = drift(played, tokenizer)
    report = measure(tmp_path, tokenizer)
    decoded, rendered = report.methods[Method.DECODE], report.methods[Method.RENDER]
    assert (report.turns, report.tokens) == (before.turns, before.tokens)
    assert (decoded.turns, decoded.drifted) == (before.turns, before.by_decoding)
    assert (rendered.turns, rendered.drifted) == (before.turns, before.by_rendering)
    # docs/templates.md: 0.07 % and 38.0 %, 18.5 % and 44.6 %; other episodes of the same policies are near.
    low, high = (0.0, 0.02) if checkpoint == "canonical" else (0.10, 0.28)
    assert low <= decoded.share <= high
    assert 0.28 <= rendered.share <= 0.55
    assert rendered.causes[Cause.JSON_SPACING].turns > 0.2 * rendered.turns
    (tmp_path / "drift.html").write_text(html_page(report))
    figures = {method.value: round(report.methods[method].share, 4) for method in Method}
    print(json.dumps({"drift of": checkpoint, "turns": report.turns, "tokens": report.tokens, **figures}))
