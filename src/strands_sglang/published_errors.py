"""The error names of the published package, which programs written for it catch; and the base of every error of ours.

    StrandsSGLangError
    └── SGLangClientError               anything that went wrong on the way to the engine
        ├── SGLangHTTPError             the engine answered with an error status
        │   ├── SGLangContextLengthError    the request does not fit its context
        │   └── SGLangThrottledError        it had too much to do (429, 503)
        ├── SGLangConnectionError       there was no answer
        └── SGLangDecodingError         the answer cannot be read

Nothing raises these themselves: each is the base of those errors in `errors` that say the same, and more.
"""

from __future__ import annotations


class StrandsSGLangError(Exception):
    """Base of every error this package raises on purpose."""


class SGLangClientError(StrandsSGLangError):
    """The engine, or the way to it, failed."""


class SGLangHTTPError(SGLangClientError):
    """The engine answered with an error status."""

    def __init__(self, message: str = "", *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None when it was not told."""
        self.body = body
        """The server's own words."""


class SGLangContextLengthError(SGLangHTTPError):
    """The request does not fit the engine's context."""


class SGLangThrottledError(SGLangHTTPError):
    """The engine had too much to do."""


class SGLangConnectionError(SGLangClientError):
    """There was no answer, or no whole one."""


class SGLangDecodingError(SGLangClientError):
    """The answer cannot be read."""
