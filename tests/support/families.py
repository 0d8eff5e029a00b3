"""Real tokenizers, one of each model family, by the name of the family.

They come from the folder `$STRANDS_SGLANG_FIXTURES` when it is set (one folder a family), else from the hub. A family
that is in neither place is an error, never a skipped test.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

FAMILIES = {
    "deepseek-r1": "deepseek-ai/DeepSeek-R1-0528",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3-0324",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3.1",
    "deepseek-v3.2": "deepseek-ai/DeepSeek-V3.2-Exp",
    "deepseek-v4": "deepseek-ai/DeepSeek-V4-Flash",
    "devstral-2507": "unsloth/Devstral-Small-2507",
    "gemma-3": "google/gemma-3-1b-it",
    "glm-4.5": "zai-org/GLM-4.5",
    "glm-4.6": "zai-org/GLM-4.6",
    "glm-4.7-flash": "zai-org/GLM-4.7-Flash",
    "gpt-oss": "openai/gpt-oss-20b",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "kimi-k2-thinking": "moonshotai/Kimi-K2-Thinking",
    "llama-3.1": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.2": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.3": "meta-llama/Llama-3.3-70B-Instruct",
    "minimax-m2": "MiniMaxAI/MiniMax-M2",
    "ministral-3-reasoning": "mistralai/Ministral-3-3B-Reasoning-2512",
    "mistral-nemo": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-small-3.2": "unsloth/Mistral-Small-3.2-24B-Instruct-2506",
    "nemotron-3-nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "phi-4-mini": "microsoft/Phi-4-mini-instruct",
    "qwen2.5": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3": "Qwen/Qwen3-8B",
    "qwen3-coder": "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "qwen3-instruct-2507": "Qwen/Qwen3-4B-Instruct-2507",
    "qwen3-thinking-2507": "Qwen/Qwen3-4B-Thinking-2507",
    "qwen3.5": "Qwen/Qwen3.5-35B-A3B",
    "qwen3.6": "Qwen/Qwen3.6-35B-A3B",
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm3": "HuggingFaceTB/SmolLM3-3B",
}
"""Every family, with a name of it on the hub."""


def tokenizer_path(family: str) -> str:
    """Return the folder of a family's tokenizer; without `$STRANDS_SGLANG_FIXTURES`, its name on the hub."""
    fixtures = os.environ.get("STRANDS_SGLANG_FIXTURES")
    if not fixtures:
        return FAMILIES[family]
    folder = Path(fixtures) / family
    if not folder.is_dir():
        raise FileNotFoundError(f"no tokenizer of {family} in {fixtures}; unset STRANDS_SGLANG_FIXTURES to use the hub")
    return str(folder)


@cache
def tokenizer(family: str) -> Any:
    """Return the tokenizer of a family: the same object every time, so that a template is tried out once."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_path(family))
