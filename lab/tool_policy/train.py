#!/usr/bin/env python3
"""Train the tool policy from nothing, on one core, in a few minutes.

    lab/tool_policy/train.py FOLDER                        # a policy like canonical/: 2 to 4 minutes
    lab/tool_policy/train.py FOLDER --split-digits 0.15    # a policy like noncanonical/: 8 minutes

Supervised: the right dialogues of endless fresh tasks, loss on what the assistant says. It stops before the policy is
perfect, so that reinforcement learning has something to do.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

from task import dialogue, render, sample_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

BATCH = 32
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
REPORT_EVERY = 50
IGNORE = -100


@dataclass
class Example:
    """One right dialogue as tokens.

    Attributes:
        ids: Its tokens.
        trained: For each token, whether the assistant says it.
        log_probability: Of the choices made in writing it: JSON with or without spaces, digits split or not.
    """

    ids: list[int]
    trained: list[bool]
    log_probability: float


class Teacher:
    """Writes examples.

    Args:
        tokenizer: The policy's tokenizer.
        split_digits: The chance that the assistant writes a two-digit token as two one-digit tokens. The text stays
            the same, but decoding and encoding it again gives other tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, split_digits: float) -> None:
        """Look up the two-digit tokens."""
        self.tokenizer = tokenizer
        self.split_digits = split_digits
        self.rng = random.Random(1)
        vocabulary = tokenizer.get_vocab()
        self.pairs = {
            vocabulary[pair]: [vocabulary[digit] for digit in pair]
            for pair in (f"{number:02d}" for number in range(100))
            if pair in vocabulary
        }

    def write(self) -> Example:
        """Write the right dialogue of a fresh task."""
        example = Example([], [], math.log(0.5))
        for message in dialogue(sample_task(self.rng), compact=self.rng.random() < 0.5):
            text = render(message)
            if message.role != "assistant":
                self._add(example, text, False)
                continue
            header = "<|im_start|>assistant\n"
            self._add(example, header, False)
            self._add(example, text[len(header) : -1], True)
            self._add(example, "\n", False)
        return example

    def _add(self, example: Example, text: str, trained: bool) -> None:
        for token in self.tokenizer(text, add_special_tokens=False).input_ids:
            written = [token]
            if trained and self.split_digits and token in self.pairs:
                split = self.rng.random() < self.split_digits
                example.log_probability += math.log(self.split_digits if split else 1 - self.split_digits)
                written = self.pairs[token] if split else written
            example.ids += written
            example.trained += [trained] * len(written)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 of 0.65 million parameters with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        rope_theta=10000.0,
    )
    return Qwen3ForCausalLM._from_config(config, attn_implementation="eager")


def train(folder: Path, success: float, minutes: float, split_digits: float) -> None:
    """Train until the policy is good enough or the time is up, then save it.

    Args:
        folder: Where the checkpoint goes.
        success: Stop at this share of tasks done right, sampling at temperature 1.
        minutes: Stop after this long in any case.
        split_digits: See `Teacher`.
    """
    import torch
    from tokenizer import make_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    teacher, model = Teacher(tokenizer, split_digits), make_model(tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokenizer)} tokens, {parameters} parameters; until {success:.0%} success or {minutes:g} minutes")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    began, step, recent = time.monotonic(), 0, 0.0
    while recent < success and time.monotonic() - began < minutes * 60:
        step += 1
        examples = [teacher.write() for _ in range(BATCH)]
        length = max(len(example.ids) for example in examples)
        ids = torch.full((BATCH, length), tokenizer.pad_token_id)
        labels = torch.full((BATCH, length), IGNORE)
        for row, example in enumerate(examples):
            tokens, trained = torch.tensor(example.ids), torch.tensor(example.trained)
            ids[row, : len(tokens)] = tokens
            labels[row, : len(tokens)] = tokens.where(trained, IGNORE)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, step / WARMUP_STEPS)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits
        losses = torch.nn.functional.cross_entropy(
            logits.float()[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="none"
        ).view(BATCH, -1)
        loss = losses.sum() / (labels[:, 1:] != IGNORE).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # How likely the policy is to say one of the right dialogues: its probability of this one over the chance that
        # we wrote this one, on average. The tasks are fresh, so nothing needs to be held out.
        choices = torch.tensor([example.log_probability for example in examples])
        rate = torch.exp(-losses.detach().sum(1) - choices).mean().item()
        recent += (rate - recent) / 20
        if step % REPORT_EVERY == 0:
            print(f"{time.monotonic() - began:4.0f} s  step {step:4d}  loss {loss.item():.4f}  success {recent:.0%}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"saved {folder} after {step} steps, {time.monotonic() - began:.0f} s; try it: lab/serve {folder}")


def main() -> None:
    """Read the command line; move to the engine's Python where this one has no PyTorch."""
    parser = argparse.ArgumentParser(description="Train the tool policy from nothing, on one core, in a few minutes.")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    parser.add_argument("--success", type=float, default=0.5, help="stop at this share done right (default: 0.5)")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after this long (default: 10)")
    parser.add_argument("--split-digits", type=float, default=0.0, help="chance to split a two-digit token")
    arguments = parser.parse_args()
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        import engine

        try:
            engine.ensure([])
            engine.become(["-u", str(Path(__file__).resolve()), *sys.argv[1:]])
        except engine.LabError as error:
            sys.exit(f"train.py: {error}")
    train(arguments.folder, arguments.success, arguments.minutes, arguments.split_digits)


if __name__ == "__main__":
    main()
