"""verl's own output type and image inputs, with outputs that our agent loop would make of episodes with images.

    python verl_images.py      # in verl's environment, with tests/ on PYTHONPATH

Prints one line of JSON: how many outputs and images went through verl's `_compute_multi_modal_inputs`.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker

from strands_sglang.trainers.rows import plain_rows
from strands_sglang.trainers.verl import output_fields
from support.trainers.grown_episodes import PLACEHOLDER, episode_of, grown

MARK = "<image>"


class Tokenizer:
    """Numbers as text."""

    pad_token_id = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return " ".join(MARK if id == PLACEHOLDER else str(id) for id in ids)


class Processor:
    """A real image processor, behind the interface of a processor of text and images."""

    image_token_id, image_token = PLACEHOLDER, MARK

    def __init__(self) -> None:
        kind = getattr(transformers, "Qwen2VLImageProcessorPil", None) or transformers.Qwen2VLImageProcessor
        size = {"shortest_edge": 3136, "longest_edge": 200704}
        self.image_processor: Any = kind(patch_size=16, merge_size=2, size=size)

    def __call__(self, text: list[str], images: Any = None, **_: Any) -> Any:
        assert text[0].count(MARK) == len(images or ()), "verl found other images in the tokens than in the output"
        made = dict(self.image_processor(images=images, return_tensors="pt")) if images else {}
        return transformers.BatchFeature({**made, "input_ids": torch.zeros(1, 1), "attention_mask": torch.zeros(1, 1)})


def main() -> None:
    logging.disable(logging.WARNING)
    made: Any = getattr(AgentLoopWorker, "__ray_metadata__", None)
    kind: Any = AgentLoopWorker if made is None else made.modified_class
    worker = kind.__new__(kind)
    worker.processor, worker.tokenizer = Processor(), Tokenizer()
    worker._get_mm_processor_kwargs = lambda *_: {}
    rng, found = random.Random(2), {"outputs": 0, "images": 0, "wrong": 0}
    for _ in range(150):
        episode = episode_of(grown(rng, images=True))
        for row in plain_rows(episode, pad_id=0, scored=True):
            lengths: dict[str, Any] = {"prompt_length": 99, "response_length": rng.choice([20, 99])}
            known = replace(row, versions=[None] * len(row.versions))
            output = AgentLoopOutput(**output_fields(known, episode, **lengths, logprobs=True, steps=0))
            output.as_dict()
            ids = torch.tensor([output.prompt_ids + output.response_ids])
            grids = worker._compute_multi_modal_inputs(output, ids).get("image_grid_thw")
            positions = 0 if grids is None else int(grids.prod(-1).sum()) // 4
            found["outputs"] += 1
            found["images"] += 0 if grids is None else len(grids)
            found["wrong"] += positions != int((ids == PLACEHOLDER).sum())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
