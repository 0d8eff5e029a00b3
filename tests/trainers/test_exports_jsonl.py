"""JSON lines are restored bit for bit, and `verify` accepts them as an export."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from strands_sglang.errors import RecordError
from strands_sglang.proof.finding import Verdict
from strands_sglang.proof.verify import verify
from strands_sglang.runs.episode import Episode
from strands_sglang.tokens import TokenTree
from strands_sglang.trainers.exports import read_jsonl, write_jsonl
from strands_sglang.trainers.rows import Branch, Branches, branches_of
from support.rollout.agent_kinds import plain
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
    episodes = [episode_of(grown(rng), reward=rng.choice([None, 0.1, 1 / 3])) for _ in range(200)]
    expected = list(branches_of(episodes))
    assert write_jsonl(episodes, tmp_path / "rows.jsonl") == len(expected) > 150
    assert_same(list(read_jsonl(tmp_path / "rows.jsonl")), expected)
    main = write_jsonl(iter(episodes), tmp_path / "main.jsonl", branches=Branches.MAIN)
    assert main == sum(one.main for one in read_jsonl(tmp_path / "main.jsonl")) < len(expected)
    kept = write_jsonl(episodes, tmp_path / "kept.jsonl", keep=lambda episode: episode.reward is None)
    assert 0 < kept == sum(one.reward is None for one in expected)


def test_logprobs_of_every_magnitude(tmp_path: Path) -> None:
    tree = TokenTree("t")
    values = [-0.0, -5e-324, -1e-300, -0.1, -1 / 3, float(np.float32(-0.1)), np.nextafter(-1.0, -2.0), -1e300]
    prepared = tree.prepare(None, context=[1])
    tree.commit(prepared, list(range(len(values))), values)
    write_jsonl([episode_of(tree)], tmp_path / "rows.jsonl")
    [found] = read_jsonl(tmp_path / "rows.jsonl")
    assert found.trajectory.logprobs[1:].tobytes() == np.array(values).tobytes()


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
