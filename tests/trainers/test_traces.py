"""ATIF, OpenEnv's traces and TRL's tree rows: the tokens, logprobs and loss terms of the ledger, each turn once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang.errors import ConfigurationError, LedgerError
from strands_sglang.tokens import TokenTree
from strands_sglang.trainers.exports import Advantages, padded_batch
from strands_sglang.trainers.traces import _timestamp, _training_turn, write_atif, write_training_traces
from strands_sglang.trainers.trl import tree_rows
from support.examples import size
from support.trainers.recorded_trees import record_trees

COUNT = size(60, 200)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, TokenTree]]:
    directory = tmp_path_factory.mktemp("traces") / "run"
    return directory, record_trees(directory, COUNT)


def documents(directory: Path, folder: Path, **options: Any) -> dict[str, dict[str, Any]]:
    written = write_atif(directory, folder, **options)
    read = {path.stem.replace(".", "/"): json.loads(path.read_bytes()) for path in folder.iterdir()}
    assert len(read) == written
    return read


def every_step(document: dict[str, Any]) -> list[dict[str, Any]]:
    inside = [document, *document.get("subagent_trajectories", ())]
    return [step for one in inside for step in one["steps"]]


def test_atif_has_every_turn_once(recorded: tuple[Path, dict[str, TokenTree]], tmp_path: Path) -> None:
    directory, trees = recorded
    found = documents(directory, tmp_path / "atif")
    assert set(found) == {id for id, tree in trees.items() if len(tree)}
    for id, document in found.items():
        tree, own = trees[id], dict[int, dict[str, Any]]()
        for step in every_step(document):
            if "metrics" in step:
                assert own.setdefault(step["extra"]["turn"], step) is step, "a turn is measured once"
        assert set(own) == {turn.id for turn in tree.turns}
        for turn in tree.turns:
            step, metrics = own[turn.id], own[turn.id]["metrics"]
            assert metrics["completion_token_ids"] == turn.sampled.tolist()
            assert metrics["logprobs"] == turn.logprobs.tolist()
            prompt = [token for one in tree.path(turn) for token in (*one.closing, *one.context, *one.sampled)]
            assert metrics["prompt_token_ids"] == prompt[: turn.sampled_start]
            assert metrics["prompt_tokens"] == turn.sampled_start and metrics["completion_tokens"] == len(turn.sampled)
            assert "loss_mask" not in step["extra"], "the whole turn is trained, or nothing of it"
            assert step["timestamp"].startswith("2027-01-15T08:00:")
        trained = [step for step in own.values() if step["extra"]["trained"]]
        assert sum(step["metrics"]["completion_tokens"] for step in trained) == sum(
            int(one.loss_mask.sum()) for one in tree.trajectories()
        )
        assert document["final_metrics"]["total_steps"] == len(document["steps"])


def test_atif_has_the_conversation(
    recorded: tuple[Path, dict[str, TokenTree]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(recorded[0].name)
    monkeypatch.chdir(recorded[0].parent)  # paths in the files are from the files, not from here
    kinds = {"observation": 0, "reasoning_content": 0, "tool_calls": 0, "image": 0, "ref": 0, "copied": 0}
    for id, document in documents(directory, tmp_path / "atif", token_ids=False).items():
        embedded = {one["trajectory_id"] for one in document.get("subagent_trajectories", ())}
        assert document["extra"]["end_reason"] == "answered" and 0 <= document["extra"]["reward"] <= 1, id
        for step in every_step(document):
            assert "prompt_token_ids" not in step.get("metrics", {})
            for name in ("observation", "reasoning_content", "tool_calls"):
                kinds[name] += name in step
            kinds["copied"] += step.get("is_copied_context", False)
            if isinstance(step["message"], list):
                paths = [part["source"]["path"] for part in step["message"] if part["type"] == "image"]
                assert paths and all((tmp_path / "atif" / path).is_file() for path in paths)
                assert not any(Path(path).is_absolute() for path in paths)
                kinds["image"] += 1
            for result in step.get("observation", {}).get("results", ()):
                assert result["content"] == "seen" and result["extra"]["ended_at"].startswith("2027-01-15")
                for ref in result.get("subagent_trajectory_ref", ()):
                    assert ref["trajectory_id"] in embedded
                    kinds["ref"] += 1
    assert all(kinds.values()), kinds


def test_traces_have_the_masks_of_the_ledger(recorded: tuple[Path, dict[str, TokenTree]], tmp_path: Path) -> None:
    directory, trees = recorded
    assert write_training_traces(directory, tmp_path / "traces.jsonl") == len(trees)
    found: dict[str, dict[str, Any]] = {}
    for line in (tmp_path / "traces.jsonl").read_bytes().splitlines():
        for turn in json.loads(line)["turns"]:
            assert found.setdefault(turn["node_id"], turn) is turn
    expected = {f"{id}#{turn.id}": turn for id, tree in trees.items() for turn in tree.turns if turn.sampled}
    assert set(found) == set(expected)
    for node, turn in expected.items():
        one = found[node]
        assert one["completion_token_ids"] == turn.sampled.tolist() and one["per_token_logps"] == turn.logprobs.tolist()
        assert len(one["loss_mask"]) == len(one["prompt_token_ids"]) + len(turn.sampled)
    masks = sum(int(sum(one["loss_mask"])) for one in found.values())
    assert masks == sum(int(one.loss_mask.sum()) for tree in trees.values() for one in tree.trajectories())


def test_tree_rows_train_every_token_once(recorded: tuple[Path, dict[str, TokenTree]]) -> None:
    directory, trees = recorded
    samples = tree_rows(directory, model_version=lambda name: int(name or 0))
    trained = sum(int(one.loss_mask.sum()) for tree in trees.values() for one in tree.trajectories())
    assert sum(int(one["completion_mask"].sum()) for one in samples) == trained
    batch = padded_batch(directory, pad_token_id=0, advantages=Advantages.GROUP)
    assert len(samples) <= len(batch["input_ids"])
    for one in samples:
        assert len(one["input_ids"]) == len(one["completion_mask"]) == len(one["old_log_probs"])
        assert one["completion_mask"][0] == 0 and one["old_log_probs"].dtype == np.float32
        assert one["model_version"] in (0, 1, 2, 3)
    with pytest.raises(ConfigurationError, match="a weight version must be a decimal number"):
        tree_rows(directory)


def test_rounded_logprob_is_told(tmp_path: Path) -> None:
    """OpenEnv accepts none above 0."""
    trees = record_trees(tmp_path / "run", 6, seed=3)
    turn = next(turn for tree in trees.values() for turn in tree.turns if turn.sampled)
    turn.logprobs[0] = 1e-7
    record: Any = type("Record", (), {"id": "t/0", "reward": None, "end": None})
    tree = next(tree for tree in trees.values() if turn in tree.turns)
    line = _training_turn(record, tree, turn, None)
    assert line["per_token_logps"][0] == 0.0 and line["metadata"]["rounded_logprobs"] == [[0, 1e-7]]


@pytest.mark.parametrize("time", [1e300, -1e300, float("nan"), float("inf"), True, "1"])
def test_time_that_no_clock_shows_is_left_out(time: Any) -> None:
    assert _timestamp(time) in (None, "1970-01-01T00:00:01+00:00") and _timestamp(0) == "1970-01-01T00:00:00+00:00"


def loss_terms(directory: Path, tmp_path: Path) -> tuple[int, int]:
    """Return the loss terms of both formats."""
    traced = stepped = 0
    write_training_traces(directory, tmp_path / "traces.jsonl")
    for line in (tmp_path / "traces.jsonl").read_bytes().splitlines():
        for turn in json.loads(line)["turns"]:
            traced += sum(turn["loss_mask"])
            assert sum(turn["loss_mask"]) or not turn["metadata"]["trained"]
    for document in documents(directory, tmp_path / "atif").values():
        for step in every_step(document):
            if "metrics" in step and step["extra"]["trained"]:
                stepped += sum(step["extra"].get("loss_mask", [1] * step["metrics"]["completion_tokens"]))
    return traced, stepped


def test_tokens_that_are_too_old_have_no_loss(tmp_path: Path) -> None:
    """Also in the middle of a turn, which the weights changed under."""
    ages = [["1", 2], ["2", 1], ["3", 0], [None, None]]
    stale = {"limit": 0, "action": "mask", "order": "number", "current": "3", "ages": ages, "age": 2}
    trees = record_trees(tmp_path / "run", COUNT, seed=5, staleness={**stale, "decision": "masked"})
    whole = 0
    for tree in trees.values():
        whole += sum(int(one.loss_mask.sum()) for one in tree.trajectories())
        tree.untrained_versions = frozenset("12")
    left = sum(int(one.loss_mask.sum()) for tree in trees.values() for one in tree.trajectories())
    assert 0 < left < whole
    assert loss_terms(tmp_path / "run", tmp_path) == (left, left)


@pytest.mark.parametrize(
    "how",
    [{"end_reason": "tool_unavailable"}, {"end_reason": "engine_error"}, {"end_reason": "paused"}, {"staleness": {}}],
)
def test_nothing_is_trained_of_a_failed_or_dropped_episode(how: dict[str, Any], tmp_path: Path) -> None:
    if "staleness" in how:
        stale = {"limit": 0, "action": "drop", "order": "given", "current": None, "ages": [], "age": None}
        how = {"staleness": {**stale, "decision": "dropped"}}
    record_trees(tmp_path / "run", 8, **how)
    assert loss_terms(tmp_path / "run", tmp_path) == (0, 0)
    first = json.loads((tmp_path / "traces.jsonl").read_bytes().splitlines()[1])
    assert first["turns"][0]["metadata"]["end_reason"] == how.get("end_reason", "answered")


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        write_atif(tmp_path / "nothing", tmp_path / "out")
