"""What went wrong with one attempt, and whether trying again can help.

A fault is transient when the same request may succeed later: no connection, a lost one, a body that is cut or
garbled, 408, 409, 425, 429 and every 5xx. Everything else the server says is final and is raised with its words.

Overflow is told by the sentences SGLang really writes, not by a word in them: "top_k exceeds vocab size" is a
plain refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from yarl import URL

from strands_sglang.errors import ContextOverflowError, EngineError, EngineUnavailableError, RequestRejectedError

_TRANSIENT = frozenset({408, 409, 425, 429})
# Said by a router or proxy that gave up waiting: the engine behind it may still be at work.
_FROM_BETWEEN = frozenset({408, 502, 504})
_LONGEST_WORDS = 2000

# Each sentence names the tokens asked for and the limit where the server says them.
_OVERFLOW = tuple(
    re.compile(pattern)
    for pattern in (
        r"The input \((?P<asked>\d+) tokens\) is longer than the model's context length \((?P<limit>\d+) tokens\)",
        r"exceeds the model's maximum context length of (?P<limit>\d+) tokens\."
        r" You requested a total of (?P<asked>\d+) tokens",
        r"Input length \((?P<asked>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)",
        r"Request prompt exceeds the KV memory budget: input_len=(?P<asked>\d+)",
        r"Multimodal prompt is too long after expanding multimodal tokens",
    )
)


class TransientFault(Exception):
    """One attempt failed in a way that may pass; `error` is what it amounts to if it does not."""

    def __init__(self, error: EngineError, *, retry_after: float | None = None, in_flight: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        """The typed error of this attempt."""
        self.retry_after = retry_after
        """Seconds the server asked to wait; None when it did not."""
        self.in_flight = in_flight
        """Whether the engine may still be working on the request."""


def is_transient(status: int) -> bool:
    """Return whether a request that got this HTTP status may succeed later."""
    return status in _TRANSIENT or status >= 500


def from_status(status: int, body: bytes, url: str, headers: Mapping[str, str] | None = None) -> Exception:
    """Turn an HTTP error answer into what to raise: a `TransientFault`, or the final error."""
    if 300 <= status < 400:
        return _redirected(status, url, headers)
    error = from_words(status, server_words(body), url)
    if isinstance(error, TransientFault):
        error.retry_after = _retry_after(headers)
        error.in_flight = status in _FROM_BETWEEN
    return error


def _redirected(status: int, url: str, headers: Mapping[str, str] | None) -> RequestRejectedError:
    """Return the error of an answer that names another address."""
    try:
        place = URL(headers.get("Location", "") if headers else "")
        where = f" to {place.origin()}" if place.is_absolute() else ""
    except ValueError:
        where = ""
    return RequestRejectedError(
        f"{url} answered {status}, a redirect{where}, and redirects are not followed: a prompt goes nowhere but to "
        "base_url | is base_url complete (https:// where the server wants it, its path)? if it has moved, give the new "
        "one",
        status=status,
    )


def from_words(status: int | None, words: str, url: str) -> Exception:
    """Turn a status (None: not told) and the server's own words into what to raise."""
    if status is not None and is_transient(status):
        message = f"{url} answered {status}: {words or '(no text)'}"
        return TransientFault(EngineUnavailableError(message, attempts=1, status=status, body=words))
    for pattern in _OVERFLOW:
        if found := pattern.search(words):
            groups = found.groupdict()
            return ContextOverflowError(
                f"the request does not fit the engine's context: {words}",
                status=status,
                server_message=words,
                requested_tokens=_number(groups.get("asked")),
                limit_tokens=_number(groups.get("limit")),
            )
    hint = _HINTS.get(status, "")
    told = "" if status is None else f" with {status}"
    return RequestRejectedError(
        f"{url} refused the request{told}: {words or '(no text)'}{hint}", status=status, server_message=words
    )


_HINTS: dict[int | None, str] = {
    401: " | pass api_key= to the client",
    403: " | pass api_key= to the client, or ask whether this key may do this",
    404: " | is base_url that of an SGLang server or router? it should answer GET /health",
}


def server_words(body: bytes) -> str:
    """Return the message inside an error body of the engine, the router, or anything between."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:_LONGEST_WORDS].decode("utf-8", "replace").strip()
    for _ in range(3):
        if not isinstance(answer, dict):
            break
        answer = next((answer[key] for key in ("error", "message", "detail") if answer.get(key)), answer.get("msg", ""))
    words = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
    return words[:_LONGEST_WORDS]


def _retry_after(headers: Mapping[str, str] | None) -> float | None:
    value = headers.get("Retry-After") if headers else None
    try:
        seconds = float(value) if value else None
    except ValueError:
        return None  # the form with a date: our own backoff is good enough
    return seconds if seconds is not None and 0 <= seconds < 3600 else None


def _number(text: str | None) -> int | None:
    return int(text) if text else None
