"""Make the tool policy's tokenizer: byte-level BPE over the task's dialogues, with Qwen-style control tokens.

`train.py` uses it; it needs `transformers` and `tokenizers`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from task import CHAT_TEMPLATE, MARKER_TOKENS, SPECIAL_TOKENS, dialogue, render, sample_task
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

DIALOGUES = 6000

# Runs of digits are cut into groups of two, so that a number is a few tokens and its digits can be split otherwise.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _texts() -> Iterator[str]:
    rng = random.Random(0)
    for _ in range(DIALOGUES):
        yield "".join(map(render, dialogue(sample_task(rng), compact=rng.random() < 0.5)))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer: the dialogues have few words, so it runs out of merges at 461 entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    # Markers are ordinary text to a decoder, as in Qwen's own tokenizers: they stay when special tokens are skipped.
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKER_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
