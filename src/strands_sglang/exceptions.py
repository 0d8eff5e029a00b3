"""Error names of the published package, and the base class of every error of this package.

    StrandsSGLangError
    └── SGLangClientError               the engine, or the connection to it, failed
        ├── SGLangHTTPError             the engine answered with an error status
        │   ├── SGLangContextLengthError    the request does not fit its context
        │   └── SGLangThrottledError        the engine was overloaded (429, 503)
        ├── SGLangConnectionError       there was no answer
        └── SGLangDecodingError         the answer is not readable

    try:
        await client.generate(ids)
    except SGLangConnectionError:
        ...

These are never raised themselves. Each is a base class of the more specific errors in `errors`.
"""

from __future__ import annotations


class StrandsSGLangError(Exception):
    """Base class of every error that this package raises on purpose."""


class SGLangClientError(StrandsSGLangError):
    """The engine, or the connection to it, failed.

    Example:
        try:
            await client.generate(ids)
        except SGLangClientError as error:
            print(error)
    """


class SGLangHTTPError(SGLangClientError):
    """The engine answered with an error status.

    Example:
        try:
            await client.generate(ids)
        except SGLangHTTPError as error:
            print(error.status, error.body)
    """

    def __init__(self, message: str = "", *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; None if unknown."""
        self.body = body
        """The server's message."""


class SGLangContextLengthError(SGLangHTTPError):
    """The request does not fit the engine's context.

    Example:
        >>> issubclass(SGLangContextLengthError, SGLangHTTPError)
        True
    """


class SGLangThrottledError(SGLangHTTPError):
    """The engine was overloaded.

    Example:
        >>> issubclass(SGLangThrottledError, SGLangHTTPError)
        True
    """


class SGLangConnectionError(SGLangClientError):
    """There was no answer, or only part of one.

    Example:
        >>> issubclass(SGLangConnectionError, SGLangClientError)
        True
    """


class SGLangDecodingError(SGLangClientError):
    """The answer is not readable.

    Example:
        >>> issubclass(SGLangDecodingError, SGLangClientError)
        True
    """
