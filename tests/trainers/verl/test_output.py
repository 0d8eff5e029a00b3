"""Rows are fitted to verl's prompt and response lengths."""

from __future__ import annotations

import random
from typing import Any

from strands_sglang.trainers.rows import PlainRow, plain_rows
from support.trainers.grown_episodes import LAYERS, TOP_K, episode_of, experts_of, grown
from support.trainers.verl_mirror import adapter

ROW = PlainRow([1, 2, 3, 4], [5, 6, 7], [1, 0, 1], [-0.1, 0.0, -0.2], ["3", None, "4..5"], 1.0, 2)


def fields(row: PlainRow, prompt: int = 10, response: int = 10, **more: Any) -> dict[str, Any]:
    lengths = {"prompt_length": prompt, "response_length": response}
    return dict(adapter.output_fields(row, None, **lengths, logprobs=True, steps=9, **more))


def test_row_that_fits_is_unchanged() -> None:
    made = fields(ROW)
    assert (made["prompt_ids"], made["response_ids"], made["response_mask"]) == ([1, 2, 3, 4], [5, 6, 7], [1, 0, 1])
    assert made["extra_fields"]["min_global_steps"] == 3 and made["extra_fields"]["max_global_steps"] == 5
    assert made["reward_score"] == 1.0 and made["num_turns"] == 4


def test_long_prompt_continues_in_the_response() -> None:
    made = fields(ROW, prompt=2)
    assert made["prompt_ids"] == [1, 2] and made["response_ids"] == [3, 4, 5, 6, 7]
    assert made["response_mask"] == [0, 0, 1, 0, 1] and made["response_logprobs"] == [0.0, 0.0, -0.1, 0.0, -0.2]


def test_lengths_are_limited_and_rows_are_prefixes() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        tree = grown(rng)
        episode, experts = episode_of(tree), experts_of(tree)
        episode.routed_experts = {leaf.id: experts(leaf) for leaf in tree.branches()}
        for row in plain_rows(episode, pad_id=0, scored=True):
            prompt, response = rng.randint(1, 8), rng.randint(1, 8)
            made = fields(row, prompt, response, expert_shape=(LAYERS, TOP_K))
            ids = made["prompt_ids"] + made["response_ids"]
            assert ids == row.token_ids[: len(ids)]
            assert 1 <= len(made["prompt_ids"]) <= prompt
            count = len(made["response_ids"])
            assert 1 <= count <= response and count == len(made["response_mask"]) == len(made["response_logprobs"])
            zeros = len(row.prompt_ids) - len(made["prompt_ids"])
            assert made["response_mask"] == ([0] * zeros + row.loss_mask)[:count]
            assert made["routed_experts"].shape[1:] == (LAYERS, TOP_K)
            assert len(made["routed_experts"]) == (1 if row.experts is None else min(len(ids), len(row.token_ids) - 1))


def test_row_without_tokens_has_all_fields() -> None:
    empty = fields(plain_rows(None, pad_id=0, scored=True)[0])
    assert empty.keys() == fields(ROW).keys() and empty["extra_fields"].keys() == fields(ROW)["extra_fields"].keys()
    assert empty["extra_fields"]["min_global_steps"] == 9
    without_steps = PlainRow([1], [2], [1], [-0.1], [None], 1.0, 1)
    assert fields(without_steps)["extra_fields"]["min_global_steps"] is None, "a server that reports no step"
