"""Cached clients and tokenizers: `get_client`, `get_client_from_slime_args`, `get_tokenizer`.

Invariant: equal arguments return the same object.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from strands_sglang._slime_args import settings_from_slime_args
from strands_sglang.chat.tokenization import load_tokenizer
from strands_sglang.engine import SGLangClient

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
    """Return the client for these settings, which `SGLangClient` explains; equal settings return the same client.

    Example:
        client = get_client("http://localhost:30000", timeout=300.0)
    """
    return _client(base_url, max_connections, timeout, connect_timeout, max_retries, retry_delay)


def get_client_from_slime_args(
    args: Any,
    *,
    timeout: float | None = 900.0,
    connect_timeout: float = 5.0,
    max_retries: int = 60,
    retry_delay: float = 1.0,
) -> SGLangClient:
    """Return the client for the router and concurrency in slime's arguments; equal settings return the same client.

    Example:
        client = get_client_from_slime_args(args)
    """
    return get_client(
        **settings_from_slime_args(args),
        timeout=timeout,
        connect_timeout=connect_timeout,
        max_retries=max_retries,
        retry_delay=retry_delay,
    )


def get_tokenizer(tokenizer_path: str) -> Any:
    """Return a tokenizer from a directory or the hub, loaded once per process.

    Example:
        tokenizer = get_tokenizer("Qwen/Qwen3-8B")
    """
    return load_tokenizer(tokenizer_path)


@cache
def _client(base_url: str, *settings: Any) -> SGLangClient:
    return SGLangClient(base_url, **dict(zip(_SETTINGS, settings, strict=True)))
