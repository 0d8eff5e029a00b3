"""Samples with images and kept sets pass slime's own conversion, split, batches and logprobs.

Needs slime, but no engine: the trees are made up, the image processor is a real one of transformers. Of slime's trainer
everything that runs without a GPU is used: the reading of a micro-batch, and the logprobs over the kept tokens.
"""

from __future__ import annotations

import argparse
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from strands_sglang.runs.end_reason import EndReason
from strands_sglang.tokens import Join, KeptSets, TokenTree
from strands_sglang.trainers import slime as ours
from strands_sglang.trainers.chat_tasks import chat_task
from strands_sglang.trainers.images import ImageFeatures
from strands_sglang.trainers.rows import Branches
from strands_sglang.trainers.slime.kept_sets import KeptSetsForm
from strands_sglang.trainers.slime.samples import samples_of
from support.lab_servers import LAB
from support.pictures import png
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, steps
from support.rollout_agent import build
from support.trainers.grown_episodes import ENDS, PLACEHOLDER, VOCABULARY, episode_of, grown, text_of
from support.trainers.slime_checks import check_sample
from support.trainers.slime_validation import problems_of, validate_sample
from support.trainers.slime_world import SlimeWorld, slime, slime_trainer

pytestmark = [pytest.mark.slime]

GROUPS, SAMPLES = 3, 4
WORDS = PLACEHOLDER + 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SlimeWorld]:
    with SlimeWorld("http://127.0.0.1:9", tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def features() -> ImageFeatures:
    """Return an image processor of transformers with the patches of Qwen3-VL."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, "Qwen2VLImageProcessorPil", None) or transformers.Qwen2VLImageProcessor
    return ImageFeatures(kind(patch_size=16, merge_size=2, size={"shortest_edge": 3136, "longest_edge": 200704}))


def new_sample(index: int) -> Any:
    return slime("utils.types").Sample(prompt="question", label="1", index=index, group_index=index // SAMPLES)


def configured(world: SlimeWorld, *flags: Any) -> Any:
    post_process = ["--custom-reward-post-process-path", "strands_sglang.trainers.slime.grpo_by_group"]
    return world.configure(ours.slime_rollout(build), *post_process, *flags, groups=GROUPS, samples=SAMPLES)


def filled(rng: random.Random, branches: Branches, *, kept: bool, features: ImageFeatures | None) -> list[Any]:
    """Return the samples of a batch of random episodes, which end in every way."""
    made: list[Any] = []
    for index in range(GROUPS * SAMPLES):
        tree = grown(rng, kept=kept and rng.random() < 0.9, images=features is not None and rng.random() < 0.7)
        made += samples_of(
            new_sample(index),
            episode_of(tree, rng.choice([EndReason.ANSWERED, rng.choice(ENDS)]), rng.choice([0.0, 1.0])),
            branches=branches,
            decode=text_of,
            images=features,
            response_limit=rng.choice([None, None, 6]),
            kept_sets=KeptSetsForm.SLIME if kept else KeptSetsForm.NONE,
        )
    return made


def converted(world: SlimeWorld, samples: list[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what slime makes of samples: the whole batch, and the data of two ranks."""
    manager = world.manager()
    train = manager._convert_samples_to_train_data(samples)
    with world.in_memory():
        return train, [box.inner for box in manager._split_train_data_by_dp(train)]


def micro_batches(rank: dict[str, Any], args: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield what slime's trainer reads of a rank's data, one micro-batch at a time."""
    data = slime_trainer("data")
    monkeypatch.setattr(data, "accelerator", SimpleNamespace(device=lambda: "cpu", current_device=lambda: "cpu"))
    lengths = [len(tokens) for tokens in rank["tokens"]]
    rank = {**rank, "total_lengths": lengths}
    iterator = data.DataIterator(rank, rank["micro_batch_indices"])
    keys = ["tokens", "loss_masks", "total_lengths", "response_lengths", "rollout_log_probs", "multimodal_train_inputs"]
    keys += slime_trainer("loss").ROLLOUT_TOP_P_TOKEN_KEYS if args.rollout_top_p != 1.0 else ()
    for _ in rank["micro_batch_indices"]:
        yield data.get_batch(iterator, keys, pad_multiplier=8)


@pytest.mark.parametrize("branches", list(Branches))
def test_slime_reads_the_images_of_a_batch(
    world: SlimeWorld, features: ImageFeatures, branches: Branches, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, rng, shown = configured(world), random.Random(branches.value), 0
    for _ in range(6):
        samples = filled(rng, branches, kept=False, features=features)
        for sample in samples:
            check_sample(sample)
            validate_sample(sample, args)
            images = [] if sample.multimodal_inputs is None else sample.multimodal_inputs["images"]
            taken = [image.width * image.height // 32**2 for image in images]
            assert sample.tokens.count(PLACEHOLDER) == sum(taken), "every position of an image is a token"
        train, ranks = converted(world, samples)
        assert ("multimodal_train_inputs" in train) == any(sample.multimodal_train_inputs for sample in samples)
        for rank in ranks:
            for batch in micro_batches(rank, args, monkeypatch):
                inputs = batch["multimodal_train_inputs"] or {}
                count = int((batch["tokens"] == PLACEHOLDER).sum())
                assert bool(inputs) == bool(count)
                if inputs:
                    grids = inputs["image_grid_thw"]
                    assert int(grids.prod(-1).sum()) // 4 == count and inputs["pixel_values"].ndim == 2
                    assert len(inputs["pixel_values"]) == int(grids.prod(-1).sum())
                    shown += len(grids)
    assert shown > 30


def test_debug_dumps_with_images_can_be_read(world: SlimeWorld, features: ImageFeatures, tmp_path: Path) -> None:
    configured(world)
    samples = filled(random.Random(3), Branches.MAIN, kept=False, features=features)
    data, path = slime("observability.rollout_data_utils"), str(tmp_path / "dump-{rollout_id}.pt")
    data.save_debug_rollout_data(path, samples, rollout_id=0, evaluation=False)
    read = data.load_debug_rollout_data(path, rollout_id=0)
    assert [one.tokens for one in read] == [one.tokens for one in samples]
    for one, other in zip(read, samples, strict=True):
        assert (one.multimodal_train_inputs is None) == (other.multimodal_train_inputs is None)
        if one.multimodal_train_inputs is not None:
            assert (one.multimodal_train_inputs["pixel_values"] == other.multimodal_train_inputs["pixel_values"]).all()
            assert [image.size for image in one.multimodal_inputs["images"]] == [
                image.size for image in other.multimodal_inputs["images"]
            ]


@pytest.mark.parametrize("branches", list(Branches))
@pytest.mark.parametrize("images", [False, True])
def test_slime_reads_the_kept_sets_of_a_batch(
    world: SlimeWorld, features: ImageFeatures, branches: Branches, images: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every offset that slime's trainer looks at is that of its token, whatever else is in the micro-batch."""
    args, rng = configured(world, "--rollout-top-p", 0.8), random.Random(f"{branches.value} {images}")
    loss, metrics = slime_trainer("loss"), slime("observability.rollout_metrics")
    trained = 0
    for _ in range(6):
        samples = filled(rng, branches, kept=True, features=features if images else None)
        for sample in samples:
            check_sample(sample)
            validate_sample(sample, args)
            assert sample.rollout_top_p_token_ids.dtype == sample.rollout_top_p_token_offsets.dtype == np.int32
        per_token = metrics._compute_top_p_kept_vocab_metrics(args, samples).get("top_p_kept_vocab_per_token", 1.0)
        assert 1.0 <= per_token <= 4.0
        for rank in converted(world, samples)[1]:
            for batch in micro_batches(rank, args, monkeypatch):
                given = loss.get_rollout_top_p_logprob_kwargs(args, batch)
                lengths, responses = batch["total_lengths"], batch["response_lengths"]
                keep = loss._build_topp_keep_mask(
                    sum(lengths), WORDS, "cpu", **given, total_lengths=lengths, response_lengths=responses,
                    allgather_cp=False,
                )  # fmt: skip
                start = 0
                for tokens, mask, total, response in zip(
                    batch["unconcat_tokens"], batch["loss_masks"], lengths, responses, strict=True
                ):
                    rows = keep[start + total - response - 1 : start + total - 1]
                    own = rows[range(response), tokens[-response:]]
                    assert own[mask.bool()].all(), "a trained token is among those that were kept"
                    assert rows.sum(-1).max() <= 4, "rows of other samples and of prompts are not touched"
                    assert keep[start : start + total - response - 1].all()
                    trained, start = trained + int(mask.sum()), start + total
    assert trained > 60


class Policy:
    """A policy that looks at the last token only, sampled with top-p as an engine does."""

    def __init__(self, seed: int, top_p: float) -> None:
        self.rng, self.top_p = np.random.default_rng(seed), top_p
        self.logits = self.rng.normal(size=(WORDS, WORDS)).astype(np.float32) * 2

    def sample(self, last: int, count: int) -> tuple[list[int], list[float], KeptSets]:
        """Return tokens, their logprobs over the vocabulary, and their kept sets."""
        ids, logprobs, sets, behaviour = [], [], [], []
        for _ in range(count):
            scores = self.logits[last, :VOCABULARY].astype(np.float64)
            chances = np.exp(scores - np.log(np.exp(self.logits[last].astype(np.float64)).sum()))
            order = np.argsort(-chances)
            below = np.cumsum(chances[order]) - chances[order] <= self.top_p
            kept = order[below]
            last = int(self.rng.choice(kept, p=chances[kept] / chances[kept].sum()))
            ids.append(last)
            logprobs.append(float(np.log(chances[last])))
            sets.append(kept.tolist())
            behaviour.append(float(np.log(chances[last] / chances[kept].sum())))
        return ids, logprobs, KeptSets.of(sets, behaviour)

    def tree(self, turns: int) -> TokenTree:
        """Return an episode of so many turns with tool results in between."""
        tree, last = TokenTree(), None
        for _ in range(turns):
            context = self.rng.integers(0, VOCABULARY, 4).tolist()
            prepared = tree.prepare(last, context=context, join=Join.ROOT if last is None else Join.PROVED)
            ids, logprobs, kept = self.sample(context[-1], int(self.rng.integers(2, 7)))
            last = tree.commit(prepared, ids, logprobs, kept=kept)
        return tree


def test_ratios_of_slimes_logprobs_are_one(world: SlimeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights give the same logprobs: slime's trainer over the kept tokens, and the samples."""
    torch = pytest.importorskip("torch")
    args, policy = configured(world, "--rollout-top-p", 0.8), Policy(5, 0.8)
    args.allgather_cp, args.log_probs_chunk_size = False, -1
    loss, weights = slime_trainer("loss"), torch.from_numpy(policy.logits)
    samples = [
        samples_of(new_sample(at), episode_of(policy.tree(1 + at % 3)), decode=text_of, kept_sets=KeptSetsForm.SLIME)[0]
        for at in range(GROUPS * SAMPLES)
    ]
    differences, without = [], []
    for rank in converted(world, samples)[1]:
        for batch in micro_batches(rank, args, monkeypatch):
            common = {"unconcat_tokens": batch["unconcat_tokens"], "total_lengths": batch["total_lengths"]}
            common |= {"response_lengths": batch["response_lengths"], "args": args}
            logits = weights[batch["tokens"]]
            exact = loss.get_log_probs_and_entropy(
                logits, **common, **loss.get_rollout_top_p_logprob_kwargs(args, batch)
            )
            blind = loss.get_log_probs_and_entropy(logits, **common)
            for ours_, with_sets, no_sets, mask in zip(
                batch["rollout_log_probs"],
                exact[1]["log_probs"],
                blind[1]["log_probs"],
                batch["loss_masks"],
                strict=True,
            ):
                assert torch.allclose(with_sets[~mask.bool()], torch.zeros(1)), "tokens of tools have no choice"
                differences += (with_sets - ours_)[mask.bool()].tolist()
                without += (no_sets - ours_)[mask.bool()].tolist()
    assert len(differences) > 60 and np.abs(differences).max() < 1e-5
    assert np.abs(without).mean() > 0.1, "which would not be so without the sets"


async def test_slimes_own_sampling_parameters_ask_for_sets(world: SlimeWorld) -> None:
    """The request of slime to its own patch of SGLang is not sent; SGLang's own is, and the sample has the sets."""
    args, engine = configured(world, "--rollout-top-p", 0.8), PromptEngine(steps(2))
    sampling = world.state.sampling_params
    assert sampling["custom_params"] == {"return_top_p_token_ids": True}
    generate = ours.slime_rollout(
        lambda task, model: plain(model), reward=lambda episode: 1.0, client=engine, tokenizer=engine.tokenizer
    )
    sample = await generate(args, new_sample(0), sampling)
    check_sample(sample)
    assert not sample.remove_sample and len(sample.rollout_top_p_token_ids)
    assert all("custom_params" not in call.sampling and call.asked["kept_sets"] for call in engine.calls)
    broken = ours.slime_rollout(lambda task, model: 1 / 0, client=engine, tokenizer=engine.tokenizer)
    failed = await broken(args, new_sample(1), sampling)
    assert failed.remove_sample and not problems_of(failed, args)
    train = world.manager()._convert_samples_to_train_data([sample, failed])
    assert [len(offsets) for offsets in train["rollout_top_p_token_offsets"]] == [sample.response_length + 1, 2]


def test_images_of_slimes_dataset_are_the_agents_question(tmp_path: Path) -> None:
    """As `--multimodal-keys` puts them into the prompt of a sample."""
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for number, file in enumerate(files):
        file.write_bytes(png(64, 64, number))
    line = {"text": "<image>Is it the same as <image>?", "images": [str(file) for file in files]}
    messages = slime("utils.data")._build_messages(line, "text", True, {"image": "images"})
    prompt = chat_task(messages).prompt
    assert isinstance(prompt, list) and [next(iter(block)) for block in prompt] == ["image", "text", "image", "text"]
    assert [block["image"]["source"]["bytes"] for block in prompt[::2]] == [file.read_bytes() for file in files]


def test_flags_of_the_guide_are_slimes(world: SlimeWorld) -> None:
    """Every flag of the recipe for GPUs is one of slime's own parser, with a value that it takes."""
    guide = (LAB.parent / "docs" / "guides" / "images.md").read_text()
    recipe = guide.partition("python train.py")[2].partition("```")[0].replace("\\\n", " ")
    words = [word for word in shlex.split(recipe) if not word.startswith("$")]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    slime("utils.arguments").get_slime_extra_args_provider()(parser)
    slime("backends.sglang_utils.arguments").add_sglang_arguments(parser)
    args = parser.parse_args(words)
    assert args.custom_generate_function_path == "my_agent.generate" and len(args.rollout_external_engine_addrs) == 2
