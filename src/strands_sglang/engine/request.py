"""One `/generate` request: what is sent, and how it changes when a turn goes on after an interruption.

Invariant: the ids on the wire are exactly the caller's ids, followed by every token sampled so far in this call;
what was encoded once is not encoded again.

Request ids are of fixed length on purpose: the engine aborts by *prefix* of the id, so with ids of different
lengths aborting one request could end another.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from strands_sglang.engine.protocol import TokenIds
from strands_sglang.errors import ConfigurationError

_OURS = frozenset({"rid", "input_ids", "text", "sampling_params", "stream", "return_logprob", "logprob_start_len"})

# Parameters whose effect depends on the tokens sampled before in the same request, and the values that switch
# them off. A turn that uses one cannot be continued by another request: the state is gone with the first.
_STATEFUL: dict[str, tuple[Any, ...]] = {
    "stop": (None, [], ""),
    "stop_regex": (None, [], ""),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "custom_params": (None,),
}


class GenerateRequest:
    """The body of a `/generate` call, encoded once and patched for each further attempt."""

    __slots__ = ("_experts_start", "_extra", "_ids_json", "_sampling", "_stream", "_tail", "call_id", "prompt_tokens")

    def __init__(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.call_id = os.urandom(16).hex()
        """32 hex digits, the common part of all request ids of this call."""
        self.prompt_tokens = len(input_ids)
        """Tokens in the prompt as it stands now; grows when the turn is continued."""
        self._sampling = dict(sampling_params) if sampling_params else {}
        self._stream = stream
        self._experts_start = routed_experts_start
        self._extra = extra
        self._tail: bytes | None = None
        self._check()
        self._ids_json = _encode_ids(input_ids)

    def _check(self) -> None:
        if not self.prompt_tokens:
            raise ConfigurationError("input_ids is empty: the engine needs at least one token to continue from")
        if self._sampling.get("n", 1) != 1:
            raise ConfigurationError("sampling_params['n'] must be 1: make one call per sample")
        if self._extra and not _OURS.isdisjoint(self._extra):
            names = ", ".join(sorted(_OURS.intersection(self._extra)))
            raise ConfigurationError(f"extra may not set {names}: the client sets it")

    @property
    def experts_start(self) -> int | None:
        """First position whose routed experts are asked for; None: none are."""
        return self._experts_start

    @property
    def budget(self) -> int | None:
        """`max_new_tokens` as it stands now; None when the caller left it to the engine."""
        value = self._sampling.get("max_new_tokens")
        return value if isinstance(value, int) else None

    @property
    def continuable(self) -> bool:
        """Whether another request can go on exactly where this one is cut."""
        if self.budget is None or (self._extra and "custom_logit_processor" in self._extra):
            return False
        sampling = self._sampling
        return all(sampling[name] in neutral for name, neutral in _STATEFUL.items() if name in sampling)

    def rid(self, attempt: int) -> str:
        """Return the request id of an attempt (counted from 0)."""
        return f"{self.call_id}-{attempt % 1000:03d}"

    def body(self, attempt: int) -> bytes:
        """Return the JSON body of an attempt (counted from 0)."""
        if self._tail is None:
            self._tail = self._encode_tail()
        return b"".join((b'{"rid":"', self.rid(attempt).encode(), b'","input_ids":', self._ids_json, self._tail))

    def extend(self, token_ids: array[int], experts_start: int | None) -> None:
        """Go on behind `token_ids`, which were sampled: they join the prompt and leave the budget."""
        if not len(token_ids):
            return
        used = len(token_ids)
        self._ids_json = b"".join((self._ids_json[:-1], b",", _encode_ids(token_ids)[1:]))
        self.prompt_tokens += used
        self._experts_start = experts_start
        self._tail = None
        if self.budget is not None:
            self._sampling["max_new_tokens"] = self.budget - used
        if self._sampling.get("min_new_tokens"):
            self._sampling["min_new_tokens"] = max(0, self._sampling["min_new_tokens"] - used)

    def _encode_tail(self) -> bytes:
        fields: dict[str, Any] = {"sampling_params": self._sampling, "return_logprob": True, "stream": self._stream}
        if self._experts_start is not None:
            fields["return_routed_experts"] = True
            fields["routed_experts_start_len"] = self._experts_start
        if self._extra:
            fields.update(self._extra)
        try:
            return b"," + orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)[1:]
        except TypeError as error:
            raise ConfigurationError(f"sampling_params or extra cannot be sent as JSON: {error}") from error


def _encode_ids(ids: TokenIds) -> bytes:
    """Encode ids as a JSON list, refusing what is not a list of whole numbers from 0 up.

    An id outside the vocabulary can take a whole engine down, and a retry would then take down the next one.
    """
    source: Any = ids
    if isinstance(ids, array):
        source = np.frombuffer(ids, dtype=f"{'i' if ids.typecode in 'bhilq' else 'u'}{ids.itemsize}")
    elif isinstance(ids, np.ndarray):
        source = np.ascontiguousarray(ids)
    elif not isinstance(ids, (list, tuple)):
        source = list(ids)
    try:
        encoded = orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ConfigurationError(f"input_ids must be a flat sequence of integers: {error}") from error
    # Scans by single bytes are a hundred times cheaper than a look at each number.
    if any(byte in encoded for byte in (b"-", b".", b'"', b"e", b"n")) or encoded.find(b"[", 1) > 0:
        raise ConfigurationError("input_ids must be a flat sequence of integers from 0 up")
    return encoded
