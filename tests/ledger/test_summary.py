"""Summary rows: each follows from the events of its episode."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from strands_sglang.ledger.encoding import decoded, decoded_head
from strands_sglang.ledger.summary import SummaryBuilder, checked_row, row_line, run_rows
from strands_sglang.ledger.writer import LedgerWriter
from support.ledger.episodes import (
    corrected_episode,
    made_by,
    plain_episode,
    reopened_episode,
    resumed_episode,
    rich_episode,
)
from support.proof.in_memory import verify_events


def built(events: list[bytes], id: str) -> dict[str, object]:
    builder = SummaryBuilder(id)
    for raw in events:
        builder.add(decoded_head(raw))
    return dict(builder.row())


def test_head_equals_the_whole_event() -> None:
    events, _ = made_by(rich_episode)
    for raw in events:
        event, head = decoded(raw)[0], decoded_head(raw)
        assert head[:5] == (event.episode, event.epoch, event.number, event.kind, event.data)
        assert head.counts == {name: len(values) for name, values in event.arrays.items()}


def test_row_of_a_finished_episode() -> None:
    events, _ = made_by(plain_episode, sample=2)
    row = built(events, "add/2")
    assert row["task_id"] == "add" and row["sample"] == 2 and row["reward"] == 1.0 and row["end_reason"] == "answered"
    assert (row["turns"], row["tokens"], row["sampled_tokens"], row["branches"]) == (3, 60, 12, 1)
    assert row["versions"] == ["step-1"] and row["prompt"] == "What is 3 + 4?" and row["text"] == "It is 7."
    assert row["events"] == len(events)


def test_row_of_a_running_episode_counts_its_calls() -> None:
    events, recorder = made_by(plain_episode, end=False)
    row = built(events[:-1], "add/0")  # without the reward
    assert row["end_reason"] is None and row["reward"] is None
    assert row["turns"] == 3 and row["sampled_tokens"] == 12 and row["tool_calls"] == 2
    assert row["tokens"] == sum(len(turn) for turn in recorder.tree.turns)
    assert row["engine_seconds"] == 3 * 12.5 / 1000


def test_events_of_a_process_that_lost_the_episode_do_not_count() -> None:
    events, recorder = made_by(resumed_episode)
    row = built(events, "resumed/0")
    assert row["turns"] == len(recorder.tree) and row["end_reason"] == "answered" and row["epoch"] == 1


def test_reopened_episode_has_its_last_reward() -> None:
    events, _ = made_by(reopened_episode)
    assert built(events, "reopened/0")["reward"] == 1.0
    resumed = next(at for at, raw in enumerate(events) if decoded_head(raw).kind.value == "resume")
    row = built(events[: resumed + 1], "reopened/0")
    assert row["end_reason"] is None and row["reward"] is None


@pytest.mark.parametrize(("kept", "experiments"), [(0, 1), (1, 2), (3, 2)])
def test_experiments_of_an_episode_that_another_agent_continued(kept: int, experiments: int) -> None:
    events, _ = made_by(corrected_episode, kept=kept)
    ids = str(built(events, "corrected/0")["experiment"]).split("+")
    assert len(set(ids)) == len(ids) == experiments and all(len(id) == 8 for id in ids)
    certificate = verify_events(events)
    assert certificate.proved, certificate.text()
    assert certificate.mixed == ({"agent": {"agents:second": 1, "agents:first": 1}} if experiments > 1 else {})


@pytest.mark.parametrize("episode", [plain_episode, rich_episode, resumed_episode, reopened_episode, corrected_episode])
@pytest.mark.parametrize("seed", range(4))
def test_rows_do_not_depend_on_what_is_kept_after_the_end(episode: Any, seed: int, tmp_path: Path) -> None:
    """In any order of shards, and however often rows are asked for in between."""
    events, _ = made_by(episode)
    half = random.Random(seed).randrange(len(events) + 1)
    events = [*events[half:], *events[:half]]
    id = decoded_head(events[0]).episode
    short, whole = SummaryBuilder(id), SummaryBuilder(id, keep=True)
    for raw in events:
        short.add_encoded(raw)
        whole.add_encoded(raw)
        assert short.outdated or short.row() == whole.row()
    for name, part in (("0", events[: len(events) - half]), ("1", events[len(events) - half :])):
        with LedgerWriter(tmp_path, worker=name) as writer:
            for raw in part:
                writer.write(raw)
    assert run_rows(tmp_path) == [whole.row()]


def test_a_lone_surrogate_is_written() -> None:
    line = row_line(checked_row("a/0", {"text": "\ud800"}))
    assert orjson.loads(line)["text"] == "\\ud800"
