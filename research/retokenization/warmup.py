#!/usr/bin/env python3
"""Make the policies that runs start from, by supervised training on right solutions of the same task.

    OMP_NUM_THREADS=1 $(scripts/setup-trainers trl) research/retokenization/warmup.py split-05 smollm2-tools

`run.py` makes what it needs. The checkpoints are in the lab's cache, outside the checkout. The lab's own policies,
`canonical` and `noncanonical`, exist already.

| policy | for |
|---|---|
| `split-NN` | vocabulary ambiguity: the assistant writes a two-digit token as two tokens in NN of 100 cases |
| `operations-N` | episodes with N calls, of a policy that splits digits |
| `smollm2-tools` | a real model with a real vocabulary, which has to learn the tool's format first |
"""

from __future__ import annotations

import argparse
import fcntl
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chain
from settings import cache, policy_folder

SPLIT = 0.15
"""Share of split tokens in the lab's `noncanonical` policy."""


@dataclass(frozen=True)
class Recipe:
    """How a policy is made."""

    begin: str
    """Policy to begin with; "smollm2": the lab's SmolLM2-135M-Instruct."""
    steps: int
    """Updates."""
    batch: int
    """Right solutions per update."""
    learning_rate: float
    """Peak of the learning rate, after a short warm-up."""
    split: float = 0.0
    """Chance to write a two-digit token as two tokens."""
    operations: int = 2
    """Operations per question."""


def recipe_of(name: str) -> Recipe | None:
    """Return the recipe of a policy; None if it is not made here."""
    kind, _, value = name.rpartition("-")
    if kind == "split" and value.isdigit():
        return Recipe("noncanonical", 60, 32, 1e-3, split=int(value) / 100)
    if kind == "operations" and value.isdigit():
        return Recipe("noncanonical", 60 if int(value) < 2 else 150, 32, 1e-3, split=SPLIT, operations=int(value))
    if name == "smollm2-tools":
        return Recipe("smollm2", 7, 8, 3e-4)
    return None


def split_table(tokenizer: Any) -> dict[int, list[int]]:
    """Return the two-digit tokens of a vocabulary, each with its two digits."""
    vocabulary = tokenizer.get_vocab()
    pairs = (f"{number:02d}" for number in range(100))
    return {vocabulary[pair]: [vocabulary[digit] for digit in pair] for pair in pairs if pair in vocabulary}


def example(
    tokenizer: Any, rng: random.Random, recipe: Recipe, table: dict[int, list[int]]
) -> tuple[list[int], list[int]]:
    """Return a right solution as tokens, and its labels: -100 where the assistant does not write."""
    ids: list[int] = []
    labels: list[int] = []

    def add(text: str, trained: bool) -> None:
        for token in tokenizer(text, add_special_tokens=False).input_ids:
            split = trained and recipe.split and token in table and rng.random() < recipe.split
            written = table[token] if split else [token]
            ids.extend(written)
            labels.extend(written if trained else [-100] * len(written))

    header = "<|im_start|>assistant\n"
    for message in chain.dialogue(chain.draw(rng, recipe.operations), compact=rng.random() < 0.5):
        text = chain.arithmetic.render(message)
        if message.role == "assistant":
            add(header, False)
            add(text[len(header) : -1], True)
            add("\n", False)
        else:
            add(text, False)
    return ids, labels


def begin_folder(recipe: Recipe) -> Path:
    """Return the checkpoint that a recipe begins with, made first if it is missing."""
    if recipe.begin != "smollm2":
        return policy_folder(recipe.begin)
    sys.path.append(str(chain.LAB))
    import engine

    engine.ensure(["smollm2"])
    folder: Path = engine.MODELS["smollm2"].folder
    return folder


def make(name: str, recipe: Recipe) -> Path:
    """Train a policy and save it; it appears completely or not at all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    begin = begin_folder(recipe)
    tokenizer = AutoTokenizer.from_pretrained(begin)
    model = AutoModelForCausalLM.from_pretrained(begin, dtype=torch.float32)
    rng, table = random.Random(1), split_table(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.monotonic()
    model.train()
    for step in range(1, recipe.steps + 1):
        examples = [example(tokenizer, rng, recipe, table) for _ in range(recipe.batch)]
        longest = max(len(ids) for ids, _ in examples)
        ids = torch.tensor([one + [0] * (longest - len(one)) for one, _ in examples])
        labels = torch.tensor([one + [-100] * (longest - len(one)) for _, one in examples])
        attention = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one, _ in examples])
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(
            1.0, step / 10, (recipe.steps + 1 - step) / (0.3 * recipe.steps)
        )
        # In float32: bfloat16 is slower on a CPU without instructions for it.
        loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, recipe.steps // 6) == 0:
            print(f"{name}: {time.monotonic() - began:4.0f} s  step {step:4d}  loss {loss.item():.4f}", flush=True)
    if recipe.begin == "smollm2":
        tokenizer.chat_template = chain.arithmetic.CHAT_TEMPLATE
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    folder = cache() / name
    partial = folder.with_name(f".{name}")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def ensure(name: str) -> Path:
    """Return the checkpoint of a policy; make it if it is missing."""
    if (policy_folder(name) / "config.json").is_file():
        return policy_folder(name)
    recipe = recipe_of(name)
    if recipe is None:
        raise ValueError(f"policy must be canonical, noncanonical, split-NN, operations-N or smollm2-tools, got {name}")
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f".{name}.lock").open("w") as lock:  # another worker may be making it
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = policy_folder(name)
        return made if (made / "config.json").is_file() else make(name, recipe)


def main() -> None:
    """Make the policies that are named."""
    parser = argparse.ArgumentParser(description="Make start policies of the re-tokenisation experiment.")
    parser.add_argument("names", nargs="+", help="split-NN, operations-N, smollm2-tools")
    for name in parser.parse_args().names:
        print(ensure(name))


if __name__ == "__main__":
    main()
