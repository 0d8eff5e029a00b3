"""Which faults pass, which are final, and what the server said."""

from __future__ import annotations

import orjson
import pytest

from strands_sglang.engine import response as faults
from strands_sglang.engine.response import TransientFault
from strands_sglang.errors import ContextOverflowError, RequestRejectedError

# The sentences SGLang 0.5.21 really writes.
OVERFLOWS = [
    ("The input (1100 tokens) is longer than the model's context length (1024 tokens).", 1100, 1024),
    (
        "Requested token count exceeds the model's maximum context length of 1024 tokens. You requested a total of "
        "3003 tokens: 3 tokens from the input messages and 3000 tokens for the completion. Please reduce the number of "
        "tokens in the input messages or the completion to fit within the limit.",
        3003,
        1024,
    ),
    (
        "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens). Use a shorter input or enable "
        "--allow-auto-truncate.",
        5000,
        4090,
    ),
    ("Request prompt exceeds the KV memory budget: input_len=777.", 777, None),
]


@pytest.mark.parametrize(("words", "asked", "limit"), OVERFLOWS)
def test_overflow_is_recognised_by_real_sentences(words: str, asked: int, limit: int | None) -> None:
    error = faults.from_status(400, orjson.dumps({"error": {"message": words}}), "u")
    assert isinstance(error, ContextOverflowError)
    assert (error.requested_tokens, error.limit_tokens, error.server_message) == (asked, limit, words)


@pytest.mark.parametrize(
    "words",
    [
        "top_k exceeds vocab size",
        "max_new_tokens must be at least 0",
        "Image count 9 exceeds limit 4 per request.",
        "The requested return_hidden_states mode exceeds the server maximum",
        "context length",
    ],
)
def test_other_refusals_are_not_overflow(words: str) -> None:
    error = faults.from_status(400, orjson.dumps({"error": {"message": words}}), "u")
    assert type(error) is RequestRejectedError
    assert error.status == 400 and words in str(error)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_transient_faults(status: int) -> None:
    assert isinstance(faults.from_status(status, b"busy", "u"), TransientFault)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422])
def test_final_faults(status: int) -> None:
    assert isinstance(faults.from_status(status, b"no", "u"), RequestRejectedError)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"m"}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"msg":"m"}]}', '[{"msg":"m"}]'),
        (b"plain m", "plain m"),
        (b"\xff\xfe", "��"),
        (b"", ""),
        (b"null", "null"),
        (b'{"error":{"type":"Internal Server Error","code":"c","message":"m"}}', "m"),
    ],
)
def test_servers_message_is_used(body: bytes, words: str) -> None:
    assert faults.server_message(body) == words


def test_long_message_is_shortened() -> None:
    assert len(faults.server_message(b"x" * 10_000_000)) == 2000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("Wed, 21 Oct 2026", None), ("-1", None), ("1e9", None), ("", None)],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    fault = faults.from_status(503, b"", "u", {"Retry-After": value})
    assert isinstance(fault, TransientFault) and fault.retry_after == seconds
