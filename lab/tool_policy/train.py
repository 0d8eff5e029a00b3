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

from task import Message, dialogue, render, sample_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

BATCH = 32
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
REPORT_EVERY = 50
IGNORE = -100
GIVEN_UP = "The answer is 0."
LETTERS = 'etaoinshrdlucmfwypvbgkjqxz_-,.;{}\\"'


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

    def write(self, system: bool = False) -> Example:
        """Write the right dialogue of a fresh task.

        Args:
            system: Whether strange words come in: as a system prompt, which the policy learns to go on behind, and now
                and then instead of a tool's result, behind which it gives up.
        """
        example = Example([], [], math.log(0.5))
        if system:
            self._add(example, f"<|im_start|>system\n{self._words(60)}<|im_end|>\n", False)
        messages = dialogue(sample_task(self.rng), compact=self.rng.random() < 0.5)
        if system and self.rng.random() < 0.3:
            heard = self.rng.choice((2, 4))
            words = self.rng.choice(("error", "Unknown tool: calculator", self._words(), self._words()))
            messages = [*messages[:heard], Message("tool", words), Message("assistant", GIVEN_UP)]
        for message in messages:
            text = render(message)
            if message.role != "assistant":
                self._add(example, text, False)
                continue
            header = "<|im_start|>assistant\n"
            self._add(example, header, False)
            self._add(example, text[len(header) : -1], True)
            self._add(example, "\n", False)
        return example

    def _words(self, most: int = 20) -> str:
        """Return words that nobody has heard."""
        words = []
        for _ in range(self.rng.randint(1, most)):
            letters = "".join(self.rng.choices(LETTERS, k=self.rng.randint(1, 10)))
            words.append(self.rng.choice((letters, letters, letters.capitalize(), f"`{letters}`", f"\n- {letters}:")))
        return " ".join(words) + self.rng.choice(("", ".", "\n", "..."))

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


def train(folder: Path, success: float, minutes: float, split_digits: float, system: float, begin: Path | None) -> None:
    """Train until the policy is good enough or the time is up, then save it.

    Args:
        folder: Where the checkpoint goes.
        success: Stop at this share of tasks done right, sampling at temperature 1.
        minutes: Stop after this long in any case.
        split_digits: See `Teacher`.
        system: The share of steps whose dialogues have a system prompt and tools that may fail.
        begin: The checkpoint to begin with; None: random weights.
    """
    import torch
    from tokenizer import make_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    teacher, model = Teacher(tokenizer, split_digits), make_model(tokenizer)
    if begin is not None:
        model = type(model).from_pretrained(begin, attn_implementation="eager")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokenizer)} tokens, {parameters} parameters; until {success:.0%} success or {minutes:g} minutes")
    top = LEARNING_RATE if begin is None else LEARNING_RATE / 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=top, betas=(0.9, 0.98), weight_decay=0.01)
    began, step, recent = time.monotonic(), 0, 0.0
    while recent < success and time.monotonic() - began < minutes * 60:
        step += 1
        prompted = teacher.rng.random() < system
        examples = [teacher.write(prompted) for _ in range(BATCH // 4 if prompted else BATCH)]
        length = max(len(example.ids) for example in examples)
        ids = torch.full((len(examples), length), tokenizer.pad_token_id)
        labels = torch.full((len(examples), length), IGNORE)
        for row, example in enumerate(examples):
            tokens, trained = torch.tensor(example.ids), torch.tensor(example.trained)
            ids[row, : len(tokens)] = tokens
            labels[row, : len(tokens)] = tokens.where(trained, IGNORE)
        optimizer.param_groups[0]["lr"] = top * min(1.0, step / WARMUP_STEPS)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits
        losses = torch.nn.functional.cross_entropy(
            logits.float()[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction="none"
        ).view(len(examples), -1)
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
    parser.add_argument("--system", type=float, default=0.0, help="share of steps with system prompts")
    parser.add_argument("--begin", type=Path, help="a checkpoint to begin with (default: random weights)")
    arguments = parser.parse_args()
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        import engine

        try:
            engine.ensure([])
            engine.become(["-u", str(Path(__file__).resolve()), *sys.argv[1:]])
        except engine.LabError as error:
            sys.exit(f"train.py: {error}")
    train(**vars(arguments))


if __name__ == "__main__":
    main()
