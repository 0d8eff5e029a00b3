"""slime's own rollout with images and with truncated sampling on the real engine, up to the trainer's logprobs.

The engine samples, slime rolls out, converts, splits and reads micro-batches; a model of transformers with the same
weights scores what came out, through slime's own logprob code. It must find what the engine found.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strands_sglang.trainers.slime import slime_rollout
from support.lab_servers import LAB, LabProcess, engine
from support.rollout_agent import TOKENIZER, build, score
from support.trainers.slime_checks import checked_step
from support.trainers.slime_validation import validate_batch
from support.trainers.slime_world import Batch, SlimeWorld, slime_trainer
from trainers.slime.test_contract_images import micro_batches

pytestmark = [pytest.mark.slime, pytest.mark.engine]

VISION = str(engine.MODELS["tiny-qwen3-vl"].folder)


def look_around() -> Any:
    """Return the example whose tool returns pictures."""
    spec = importlib.util.spec_from_file_location("look_around", LAB.parent / "examples" / "look_around" / "agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trainer_logprobs(batch: Batch, args: Any, logits_of: Any, patch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """Yield for every sample the logprobs of slime's trainer, those of the sample, and the loss mask."""
    loss = slime_trainer("loss")
    args.allgather_cp, args.log_probs_chunk_size = False, -1
    for rank in batch.ranks:
        for micro in micro_batches(rank, args, patch):
            common = {"unconcat_tokens": micro["unconcat_tokens"], "total_lengths": micro["total_lengths"]}
            common |= {"response_lengths": micro["response_lengths"], "args": args}
            sets = loss.get_rollout_top_p_logprob_kwargs(args, micro)
            _, found = loss.get_log_probs_and_entropy(logits_of(micro), **common, **sets)
            yield from zip(found["log_probs"], micro["rollout_log_probs"], micro["loss_masks"], strict=True)


def packed(micro: dict[str, Any], rows: list[Any]) -> Any:
    """Return the logits of several sequences as one, padded as slime pads its tokens."""
    torch = pytest.importorskip("torch")
    whole = torch.zeros(1, micro["tokens"].shape[1], rows[0].shape[-1])
    whole[0, : sum(map(len, rows))] = torch.cat(rows)
    return whole


def largest_differences(compared: Iterator[tuple[Any, ...]]) -> list[float]:
    """Return, for each sample, the largest difference of two logprobs of a trained token."""
    return [float((theirs - own)[mask.bool()].abs().max()) for theirs, own, mask in compared]


@pytest.fixture
def truncated_world(tool_policy: LabProcess, tmp_path: Path) -> Iterator[SlimeWorld]:
    with SlimeWorld(tool_policy.url, tmp_path, alone=True) as world:
        yield world


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_truncated_sampling(truncated_world: SlimeWorld, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    world = truncated_world
    flags = ["--rollout-top-p", 0.8, "--rollout-temperature", temperature]
    args = world.configure(slime_rollout(build, reward=score), *flags, groups=2)
    batch = checked_step(world, rollouts=8)
    validate_batch(batch.groups, args)
    assert not any(sample.remove_sample for sample in batch.samples)
    for one in world.wire.generates:
        assert one.asked["return_sampling_mask"] and "custom_params" not in one.asked["sampling_params"]
    model = transformers.AutoModelForCausalLM.from_pretrained(TOKENIZER, dtype=torch.float32).eval()

    def logits_of(micro: dict[str, Any]) -> Any:
        with torch.no_grad():
            rows = [model(input_ids=tokens[None]).logits[0].float() for tokens in micro["unconcat_tokens"]]
        return packed(micro, rows)

    differences = largest_differences(trainer_logprobs(batch, args, logits_of, monkeypatch))
    assert len(differences) == 8 and max(differences) < 1e-3, differences


@pytest.fixture
def vision_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SlimeWorld]:
    pytest.importorskip("torchvision", reason="slime loads the processor of the model", exc_type=ImportError)
    server: LabProcess = request.getfixturevalue("tiny_qwen3_vl")
    with SlimeWorld(server.url, tmp_path, VISION, alone=True) as world:
        yield world


def test_images(vision_world: SlimeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    world, example = vision_world, look_around()
    lines = [
        # With the processor of a vision model, slime takes conversations only.
        {"text": [{"role": "user", "content": task.prompt}], "label": task.answer, "metadata": task.data}
        for task in random.Random(0).sample(example.tasks(32), 8)
    ]
    file = world.folder / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    generate = slime_rollout(example.build, reward=example.reward)
    args = world.configure(generate, "--prompt-data", file, groups=2, samples=2)
    batch = checked_step(world, rollouts=4)
    validate_batch(batch.groups, args)
    model = transformers.AutoModelForImageTextToText.from_pretrained(VISION, dtype=torch.float32).eval()
    pad, shown = model.config.image_token_id, 0
    for sample in batch.samples:
        if sample.multimodal_inputs is None:
            assert pad not in sample.tokens
            continue
        grids = sample.multimodal_train_inputs["image_grid_thw"]
        assert len(grids) == len(sample.multimodal_inputs["images"])
        assert sample.tokens.count(pad) == int(grids.prod(-1).sum()) // 4
        shown += len(grids)
    assert shown >= 2, "tools returned images"

    def logits_of(micro: dict[str, Any]) -> Any:
        inputs, rows, first, patches = micro["multimodal_train_inputs"] or {}, [], 0, 0
        for tokens in micro["unconcat_tokens"]:
            given: dict[str, Any] = {"input_ids": tokens[None], "mm_token_type_ids": (tokens[None] == pad).long()}
            count = int((tokens == pad).sum())
            if count:
                grids = inputs["image_grid_thw"][first:]
                number = int((grids.prod(-1).cumsum(0) // 4 == count).nonzero()[0]) + 1
                size = int(grids[:number].prod(-1).sum())
                given |= {"image_grid_thw": grids[:number], "pixel_values": inputs["pixel_values"][patches:][:size]}
                first, patches = first + number, patches + size
            with torch.no_grad():
                rows.append(model(**given).logits[0].float())
        return packed(micro, rows)

    differences = largest_differences(trainer_logprobs(batch, args, logits_of, monkeypatch))
    assert len(differences) == 4 and np.max(differences) < 1e-3, differences
