"""Keeps the secrets of a client out of errors, logs and ledgers: `Redactor`.

A proxy may repeat the key that it received in its error text, and that text ends up in an error, in a log, and in the
events of an episode.

Invariant: no text that a server sent becomes part of an error or of a recorded event before it went through a
`Redactor`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

from strands_sglang.engine.response import TransientFault

E = TypeVar("E", bound=BaseException)

_LEAST_CHARS = 4  # of a secret; a shorter text is part of too many words
_HEAD_CHARS = 8  # of a secret that is recognised although a limit of length has cut off its end


class Redactor:
    """Replaces a client's header values in text by `***`: whole, and without the scheme (`Bearer`, `Basic`)."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        found = set[str]()
        for value in headers.values():
            scheme, _, credentials = value.partition(" ")
            found |= {value, credentials}
            if scheme.lower() == "basic":
                with suppress(ValueError):
                    login = base64.b64decode(credentials).decode()
                    found |= {login, login.partition(":")[2]}
        written = {form for one in found for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
        self._secrets = sorted((one for one in written if len(one) >= _LEAST_CHARS), key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            head, at = secret[:_HEAD_CHARS], 0
            while (at := text.find(head, at)) >= 0:
                end = at + next(n for n in range(len(secret), 0, -1) if text.startswith(secret[:n], at))
                text = f"{text[:at]}***{text[end:]}"
                at += 3
        return text

    def error(self, error: E) -> E:
        """Remove the secrets from an error, from its fields and from its causes; return it."""
        error.args = tuple(self.text(one) if isinstance(one, str) else one for one in error.args)
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self.text(value))
        for inner in (error.__cause__, error.error if isinstance(error, TransientFault) else None):
            if inner is not None:
                self.error(inner)
        return error
