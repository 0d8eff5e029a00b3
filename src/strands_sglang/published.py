"""Names of the published package that are views of ours, so that programs written for it run as they are.

    from strands_sglang import get_client, get_client_from_slime_args, get_tokenizer

Beside them: `Rollout` is in `provider/published.py`, `LoopLimiter` in `loop_limiter.py`, the error names are in
`published_errors.py`. Modules that are called otherwise here can be imported by their published names, too
(`strands_sglang.client`). docs/moving.md tells what is the same, what differs and why.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from strands_sglang import loop_limiter, model, published_errors
from strands_sglang.engine import SGLangClient, client
from strands_sglang.engine.slime_args import settings_of
from strands_sglang.tool_parsers import qwen3_coder

_SETTINGS = ("max_connections", "timeout", "connect_timeout", "max_retries", "retry_delay")


def get_client(
    base_url: str,
    *,
    max_connections: int = 1000,
    timeout: float | None = 900.0,
    connect_timeout: float = 5.0,
    max_retries: int = 60,
    retry_delay: float = 1.0,
) -> SGLangClient:
    """Return the client for these settings: the same one every time. See `SGLangClient` for what they mean."""
    return _client(base_url, max_connections, timeout, connect_timeout, max_retries, retry_delay)


def get_client_from_slime_args(
    args: Any,
    *,
    timeout: float | None = 900.0,
    connect_timeout: float = 5.0,
    max_retries: int = 60,
    retry_delay: float = 1.0,
) -> SGLangClient:
    """Return the client for the router and concurrency that slime's arguments name: the same one every time."""
    return get_client(
        **settings_of(args),
        timeout=timeout,
        connect_timeout=connect_timeout,
        max_retries=max_retries,
        retry_delay=retry_delay,
    )


def get_tokenizer(tokenizer_path: str) -> Any:
    """Return the tokenizer in a folder, or of a name on the hub: loaded once.

    Args:
        tokenizer_path: What `AutoTokenizer.from_pretrained` takes.
    """
    return _tokenizer(tokenizer_path)


@cache
def _client(base_url: str, *settings: Any) -> SGLangClient:
    return SGLangClient(base_url, **dict(zip(_SETTINGS, settings, strict=True)))


@cache
def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


sys.modules.update(
    {
        "strands_sglang.client": client,
        "strands_sglang.exceptions": published_errors,
        "strands_sglang.limiter": loop_limiter,
        "strands_sglang.sglang": model,
        "strands_sglang.utils": sys.modules[__name__],
        "strands_sglang.tool_parsers.qwen_xml": qwen3_coder,
    }
)
