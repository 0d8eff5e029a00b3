"""JSON lines are restored bit for bit; in padded batches every token is at its position, and padding is not trained."""

from __future__ import annotations

import math
import random
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.errors import ConfigurationError, RecordError
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs.episode import Episode
from strands_sglang.tokens import Join, KeptSets, TokenTree, VersionSpan
from strands_sglang.trainers.exports import Advantages, Side, padded_batch, read_jsonl, write_jsonl
from strands_sglang.trainers.rows import Branch, Branches, branches_of, rows
from support.rollout.agent_kinds import plain
from support.rollout.finished import finished
from support.rollout.scripts import PromptEngine, run, steps
from support.token_trees import forked, grow
from support.trainers.grown_episodes import episode_of, grown

ARRAYS = ("token_ids", "loss_mask", "logprobs", "versions", "turns", "origins")


def assert_same(found: list[Branch], expected: list[Branch]) -> None:
    assert found == expected
    for one, other in zip(found, expected, strict=True):
        for name in ARRAYS:
            ours, theirs = getattr(one.trajectory, name), getattr(other.trajectory, name)
            assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes(), name


def test_random_episodes_are_restored_bit_for_bit(tmp_path: Path) -> None:
    rng = random.Random(5)
    episodes = [
        episode_of(grown(rng, kept=number % 2 > 0, images=number % 3 > 0), reward=rng.choice([None, 0.1, 1 / 3]))
        for number in range(200)
    ]
    expected = list(branches_of(episodes))
    assert write_jsonl(episodes, tmp_path / "rows.jsonl") == len(expected) > 150
    assert_same(list(read_jsonl(tmp_path / "rows.jsonl")), expected)
    main = write_jsonl(iter(episodes), tmp_path / "main.jsonl", branches=Branches.MAIN)
    assert main == sum(one.main for one in read_jsonl(tmp_path / "main.jsonl")) < len(expected)
    kept = write_jsonl(episodes, tmp_path / "kept.jsonl", keep=lambda episode: episode.reward is None)
    assert 0 < kept == sum(one.reward is None for one in expected)


async def test_run_and_ledger_write_the_same_file_and_verify_accepts_it(tmp_path: Path) -> None:
    directory, path = tmp_path / "run", tmp_path / "rows.jsonl"
    made = await run(
        lambda _, model: plain(model), ["one", "two"], PromptEngine(steps(2)), directory, reward=lambda episode: 0.5
    )
    assert write_jsonl(made, path) == 2
    assert write_jsonl(directory, tmp_path / "ledger.jsonl") == 2
    assert sorted(path.read_bytes().splitlines()) == sorted((tmp_path / "ledger.jsonl").read_bytes().splitlines())
    certificate = verify(directory, exported=path)
    assert certificate.verdict is Verdict.PROVED and certificate.exported is not None
    assert certificate.exported.agreed == 2
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    lines[1]["logprobs"][-1] = float(np.nextafter(lines[1]["logprobs"][-1], -9))
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert verify(directory, exported=path).verdict is Verdict.BROKEN


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    tree, _ = forked()
    path = tmp_path / "rows.jsonl"

    def failing_source() -> Iterator[Episode]:
        yield episode_of(tree)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_jsonl(failing_source(), path)
    assert list(tmp_path.iterdir()) == []
    assert write_jsonl([episode_of(tree)], path) == 3
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="no more"):
        write_jsonl(failing_source(), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def changed(line: dict[str, Any], **values: Any) -> bytes:
    return orjson.dumps({**line, **values})


def test_invalid_line_is_reported_with_its_number(tmp_path: Path) -> None:
    tree, _ = forked()
    path = tmp_path / "rows.jsonl"
    write_jsonl([episode_of(tree)], path)
    first = path.read_bytes().splitlines()[0]
    good = orjson.loads(first)
    without = orjson.dumps({name: value for name, value in good.items() if name != "reward"})
    for bad in (
        b"{",
        b"[]",
        first[:-5],
        without,
        changed(good, main=1),
        changed(good, reward="1"),
        changed(good, token_ids=good["token_ids"][:-1]),
        changed(good, loss_mask=[1] * len(good["loss_mask"])),
    ):
        path.write_bytes(first + b"\n\n" + bad + b"\n")
        found = read_jsonl(path)
        assert next(found).trajectory.branch == good["branch"]
        with pytest.raises(RecordError, match=r"rows\.jsonl, line 3: "):
            next(found)


def test_lines_are_written_and_read_one_at_a_time(tmp_path: Path) -> None:
    def many(count: int) -> Iterator[Episode]:
        for _ in range(count):
            tree = TokenTree("t")
            grow(tree, None, [1, 2], list(range(2000)))
            yield episode_of(tree)

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            write_jsonl(many(count), tmp_path / "rows.jsonl")
            assert sum(1 for _ in read_jsonl(tmp_path / "rows.jsonl")) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(40) < 1.5 * peak(4)


PAD = 77


def small() -> TokenTree:
    tree = TokenTree("t/1")
    grow(tree, None, [1, 2], [3], versions=[VersionSpan("2", 0, 1)])
    return tree


def large() -> TokenTree:
    tree = TokenTree("t/0")
    first = grow(tree, None, [1, 2], [10, 11], versions=[VersionSpan("1", 0, 1), VersionSpan("2", 1, 2)])
    grow(tree, first, [4], [12])
    return tree


def test_right_padding() -> None:
    batch = padded_batch([episode_of(large()), episode_of(small(), reward=None)], pad_token_id=PAD)
    assert batch["input_ids"].tolist() == [[1, 2, 10, 11, 4, 12], [1, 2, 3, PAD, PAD, PAD]]
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 0, 0]]
    assert batch["response_mask"].tolist() == [[0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]]
    assert batch["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]]  # the second was not scored
    expected = np.array([[0, 0, -1, -1.1, 0, -1.2], [0, 0, -0.3, 0, 0, 0]], np.float32)
    assert batch["logprobs"].tolist() == expected.tolist()
    assert batch.version_names == ("1", "2", None)
    assert batch["versions"].tolist() == [[-1, -1, 0, 1, -1, 2], [-1, -1, 1, -1, -1, -1]]
    assert batch["rewards"][0] == 1.0 and math.isnan(batch["rewards"][1])
    assert {name: str(array.dtype) for name, array in batch.items()} == {
        **dict.fromkeys(["input_ids", "attention_mask", "position_ids", "response_mask", "loss_mask"], "int64"),
        **{"logprobs": "float32", "versions": "int32", "rewards": "float32"},
        **{"group_ids": "int64", "rollout_ids": "int64", "main": "bool"},
    }


def test_left_padding_shifts_the_rows() -> None:
    episodes = [episode_of(large()), episode_of(small())]
    right, left = (padded_batch(episodes, pad_token_id=PAD, side=side) for side in (Side.RIGHT, "left"))
    for name, array in left.items():
        if array.ndim == 2:
            assert np.array_equal(array[1], np.roll(right[name][1], 3)) and np.array_equal(array[0], right[name][0])
    with pytest.raises(ValueError, match="middle"):
        padded_batch(episodes, pad_token_id=PAD, side="middle")


@pytest.mark.parametrize("side", list(Side))
def test_random_rows_are_at_their_positions(side: Side) -> None:
    rng = random.Random(3)
    episodes = [episode_of(grown(rng, kept=True)) for _ in range(150)]
    options: dict[str, Any] = {"pad_token_id": PAD, "side": side, "multiple_of": 8, "kept_block": True}
    for branches in Branches:
        expected = [row for episode in episodes for row in rows(episode, branches)]
        batch = padded_batch(episodes, branches=branches, **options)
        assert batch["input_ids"].shape[0] == len(expected) and batch["input_ids"].shape[1] % 8 == 0
        for at, row in enumerate(expected):
            there = batch["attention_mask"][at].astype(bool)
            answer = batch["response_mask"][at].astype(bool)
            assert batch["input_ids"][at][there].tolist() == row.token_ids.tolist()
            assert (batch["input_ids"][at][~there] == PAD).all()
            assert batch["loss_mask"][at][answer].tolist() == row.loss_mask.tolist()
            assert batch["logprobs"][at][answer].tolist() == row.logprobs.astype(np.float32).tolist()
            names = [None if number < 0 else batch.version_names[number] for number in batch["versions"][at][answer]]
            assert names == [None if number < 0 else row.version_names[number] for number in row.versions]
            for name in ("loss_mask", "logprobs"):
                assert not batch[name][at][~answer].any()
            assert (batch["versions"][at][~answer] == -1).all() and (answer <= there).all()
            kept = row.trajectory.kept
            assert kept is not None
            sets = [[id for id in one if id >= 0] for one in batch["kept_block"][at][there].tolist()]
            assert sets == [kept.at(number).tolist() for number in range(len(row.token_ids))]


def test_long_rows_are_truncated() -> None:
    episodes = [episode_of(large()), episode_of(small())]
    batch = padded_batch(episodes, pad_token_id=PAD, max_length=4)
    assert batch["input_ids"].tolist() == [[1, 2, 10, 11], [1, 2, 3, PAD]]
    assert batch["loss_mask"].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    shorter = padded_batch(episodes, pad_token_id=PAD, max_length=1, side=Side.LEFT, multiple_of=2)
    assert shorter["input_ids"].tolist() == [[PAD, 1], [PAD, 1]] and not shorter["loss_mask"].any()
    for wrong in ({"max_length": 0}, {"multiple_of": 0}):
        with pytest.raises(ConfigurationError, match="at least 1"):
            padded_batch(episodes, pad_token_id=PAD, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="got none to make a batch of"):
        padded_batch([episode_of(TokenTree())], pad_token_id=PAD)


def test_rows_branches_and_episodes_make_the_same_batch() -> None:
    tree, _ = forked()
    episode = episode_of(tree)
    blocks = [
        padded_batch([episode], pad_token_id=PAD),
        padded_batch(rows(episode, Branches.ALL), pad_token_id=PAD),
        padded_batch(sorted(branches_of([episode]), key=lambda one: not one.main), pad_token_id=PAD),
    ]
    for name in blocks[0]:
        if name != "rewards":
            assert np.array_equal(blocks[0][name], blocks[1][name]), name
        assert np.array_equal(blocks[0][name], blocks[2][name]), name
    assert np.isnan(blocks[1]["rewards"]).all() and blocks[0]["rollout_ids"].tolist() == [0, 0, 0]


async def test_batch_of_a_ledger(tmp_path: Path) -> None:
    made = await run(
        lambda _, model: plain(model), ["one", "two"], PromptEngine(steps(1)), tmp_path, samples_per_task=2
    )
    ours = padded_batch(made, pad_token_id=PAD)
    assert ours["group_ids"].tolist() == [0, 0, 1, 1] and ours["rollout_ids"].tolist() == [0, 1, 2, 3]
    theirs = padded_batch(tmp_path, pad_token_id=PAD)
    assert sorted(map(bytes, theirs["input_ids"])) == sorted(map(bytes, ours["input_ids"]))


def test_group_advantages() -> None:
    episodes = [finished("a", at, reward) for at, reward in enumerate([0.0, 1.0, None])]
    episodes += [finished("b", at, 3.0) for at in range(2)] + [finished("c", 0, 5.0)]
    batch = padded_batch(episodes, pad_token_id=PAD, advantages=Advantages.GROUP)
    half = 0.5 / (math.sqrt(0.5) + 1e-6)
    for row, expected in zip(batch["advantages"], [-half, half, 0.0, 0.0, 0.0, 0.0], strict=True):
        assert set(row[batch["loss_mask"][0] == 1].tolist()) == {float(np.float32(expected))}
    assert not batch["advantages"][batch["loss_mask"] == 0].any() and batch["advantages"].dtype == np.float32
    assert "advantages" not in padded_batch(episodes, pad_token_id=PAD)


def test_episode_with_several_branches_counts_once_in_its_group() -> None:
    tree, _ = forked()
    other = finished("t", 1, 0.0)
    assert other.task.id == "t"
    batch = padded_batch([episode_of(tree, reward=1.0), other], pad_token_id=PAD, advantages="group")
    assert batch["group_ids"].tolist() == [0, 0, 0, 0] and batch["rollout_ids"].tolist() == [0, 0, 0, 1]
    half = 0.5 / (math.sqrt(0.5) + 1e-6)  # the mean is 0.5, not 0.75
    assert batch["advantages"].max(axis=1)[:3].tolist() == [float(np.float32(half))] * 3
    assert batch["advantages"].min() == np.float32(-half)


def test_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = padded_batch([episode_of(large())], pad_token_id=PAD)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        batch.to_torch()
    torch: Any = ModuleType("torch")
    torch.from_numpy = lambda array: ("tensor", array)
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensors = batch.to_torch()
    assert set(tensors) == set(batch) and all(made == ("tensor", batch[name]) for name, made in tensors.items())


def truncated(id: str, *, sets: bool = True) -> TokenTree:
    """Return a tree of two turns that were sampled with truncation."""
    tree = TokenTree(id)
    first = KeptSets.of([[10, 5], [11]], [-0.5, 0.0]) if sets else None
    turn = tree.commit(tree.prepare(None, context=[1, 2]), [10, 11], [-1.0, -1.1], kept=first)
    last = KeptSets.of([[12, 6, 7]], [-0.25])
    tree.commit(tree.prepare(turn, context=[4], join=Join.PROVED), [12], [-1.2], kept=last)
    return tree


@pytest.mark.parametrize("side", [Side.RIGHT, Side.LEFT])
def test_kept_sets_are_flat_and_a_block_only_if_asked_for(side: Side) -> None:
    short = TokenTree("t/1")
    short.commit(short.prepare(None, context=[1]), [3], [-0.3], kept=KeptSets.of([[3, 8]], [-0.1]))
    episodes = [episode_of(truncated("t/0")), episode_of(short)]
    batch = padded_batch(episodes, pad_token_id=PAD, side=side, multiple_of=4)
    assert "kept_block" not in batch and "kept_mask" not in batch
    assert batch["kept_ids"].tolist() == [10, 5, 11, 12, 6, 7, 3, 8] and batch["kept_offsets"].shape == (2, 9)
    found = [[batch["kept_ids"][first:end].tolist() for first, end in pairwise(row)] for row in batch["kept_offsets"]]
    rows = [[[], [], [10, 5], [11], [], [12, 6, 7]], [[], [3, 8]]]
    padding: list[list[list[int]]] = [[[]] * 2, [[]] * 6]
    right = side is Side.RIGHT
    assert found == [(row + more) if right else (more + row) for row, more in zip(rows, padding, strict=True)]
    assert batch["kept_logprobs"][0].tolist() == (
        [0, 0, -0.5, 0, 0, -0.25, 0, 0] if right else [0] * 4 + [-0.5, 0, 0, -0.25]
    )
    block = padded_batch(episodes, pad_token_id=PAD, side=side, multiple_of=4, kept_block=True)
    assert block["kept_block"].shape == block["kept_mask"].shape == (2, 8, 3)
    assert [
        [one[mask].tolist() for one, mask in zip(*row, strict=True)]
        for row in zip(block["kept_block"], block["kept_mask"], strict=True)
    ] == found
    assert (block["kept_block"][~block["kept_mask"]] == -1).all()


def test_rows_without_kept_sets_are_not_trained_beside_rows_with_them(caplog: pytest.LogCaptureFixture) -> None:
    """A turn that was aborted without its sets, for example."""
    episodes = [episode_of(truncated("t/0")), episode_of(truncated("t/1", sets=False))]
    batch = padded_batch(episodes, pad_token_id=PAD)
    assert batch["kept_known"].tolist() == [True, False]
    assert batch["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1], [0] * 6]
    assert "without_sets=<1>" in caplog.text
    assert "kept_known" not in padded_batch([episode_of(large())], pad_token_id=PAD)
