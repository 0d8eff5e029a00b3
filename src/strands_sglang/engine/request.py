"""One `/generate` request: what is sent, and how it changes when a turn goes on after an interruption.

Invariant: the ids on the wire are exactly the caller's ids, followed by every token sampled so far in this call;
what was encoded once is not encoded again.

Request ids are of fixed length on purpose: the engine aborts by *prefix* of the id, so with ids of different
lengths aborting one request could end another.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from strands_sglang.engine.protocol import TokenIds
from strands_sglang.errors import ConfigurationError

logger = logging.getLogger(__name__)

_OURS = frozenset(
    {
        "rid",
        "input_ids",
        "text",
        "sampling_params",
        "stream",
        "return_logprob",
        "logprob_start_len",
        "return_routed_experts",
        "routed_experts_start_len",
    }
)

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


def can_go_on(sampling: Mapping[str, Any], extra: Mapping[str, Any] | None) -> bool:
    """Return whether another request can go on exactly where one with these parameters is cut."""
    if not isinstance(sampling.get("max_new_tokens"), int) or (extra and "custom_logit_processor" in extra):
        return False
    return all(sampling[name] in neutral for name, neutral in _STATEFUL.items() if name in sampling)


def request_fields(
    fields: Mapping[str, Any], experts_start: int | None, extra: Mapping[str, Any] | None
) -> tuple[int | None, dict[str, Any]]:
    """Return what fields of SGLang's request mean here: where experts are asked for from, and further fields.

    Raises:
        ConfigurationError: A field asks for what a call does not do.
    """
    rest = {**(extra or {}), **fields}
    if rest.pop("return_logprob", None) is False:
        logger.debug("return_logprob=<False> | logprobs are asked for all the same: a turn without them is no turn")
    if rest.pop("stream", False):
        raise ConfigurationError("generate returns a whole turn; SGLangClient.stream yields it as it comes")
    start = rest.pop("routed_experts_start_len", 0)
    if rest.pop("return_routed_experts", False) and experts_start is None:
        experts_start = int(start)
    return experts_start, rest


_RID_AT = len(b'{"rid":"')
_RID_LENGTH = 36
_IDS_AT = _RID_AT + _RID_LENGTH + len(b'","input_ids":')


class GenerateRequest:
    """The body of a `/generate` call, encoded once and patched for each further attempt."""

    __slots__ = ("_body", "_experts_start", "_extra", "_sampling", "_stream", "call_id", "prompt_tokens")

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
        if not self.prompt_tokens or extra or "n" in self._sampling:
            self._check()
        self._body = self._encode(_encodable(input_ids))
        _check_ids(self._body)

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
        return can_go_on(self._sampling, self._extra)

    def rid(self, attempt: int) -> str:
        """Return the request id of an attempt (counted from 0)."""
        return f"{self.call_id}-{attempt % 1000:03d}"

    def body(self, attempt: int) -> bytes:
        """Return the JSON body of an attempt (counted from 0)."""
        if attempt:
            rid = self.rid(attempt).encode()
            self._body = b"".join((self._body[:_RID_AT], rid, self._body[_RID_AT + _RID_LENGTH :]))
        return self._body

    def extend(self, token_ids: array[int], experts_start: int | None) -> None:
        """Go on behind `token_ids`, which were sampled: they join the prompt and leave the budget."""
        if not len(token_ids):
            return
        used = len(token_ids)
        self.prompt_tokens += used
        self._experts_start = experts_start
        if self.budget is not None:
            self._sampling["max_new_tokens"] = self.budget - used
        if self._sampling.get("min_new_tokens"):
            self._sampling["min_new_tokens"] = max(0, self._sampling["min_new_tokens"] - used)
        so_far = self._body[_IDS_AT : self._body.index(b"]", _IDS_AT)]
        new = orjson.dumps(_encodable(token_ids), option=orjson.OPT_SERIALIZE_NUMPY)
        self._body = self._encode(orjson.Fragment(b"".join((so_far, b",", new[1:]))))

    def _encode(self, ids: Any) -> bytes:
        # The order matters: the rid, of fixed length, and the ids are found again by their places.
        fields: dict[str, Any] = {
            "rid": self.rid(0),
            "input_ids": ids,
            "sampling_params": self._sampling,
            "return_logprob": True,
            "stream": self._stream,
        }
        if self._experts_start is not None:
            fields["return_routed_experts"] = True
            fields["routed_experts_start_len"] = self._experts_start
        if self._extra:
            fields.update(self._extra)
        try:
            return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise ConfigurationError(
                f"input_ids must be a flat sequence of integers, and sampling_params and extra plain JSON: {error}"
            ) from error


def _encodable(ids: TokenIds) -> Any:
    """Return ids in a form the codec takes, without making numbers of them that need not be."""
    if isinstance(ids, (list, tuple)):
        return ids
    if isinstance(ids, array):
        if ids.typecode not in "bBhHiIlLqQ":
            raise ConfigurationError(f"input_ids must be integers, not array({ids.typecode!r})")
        return np.frombuffer(ids, dtype=f"{'i' if ids.typecode.islower() else 'u'}{ids.itemsize}")
    if isinstance(ids, np.ndarray):
        return np.ascontiguousarray(ids)
    return list(ids)


def _check_ids(body: bytes) -> None:
    """Refuse a body whose ids are not whole numbers from 0 up.

    An id outside the vocabulary can take a whole engine down, and a retry would then take down the next one. Scans by
    single bytes are a hundred times cheaper than a look at each number.
    """
    find, start = body.find, _IDS_AT + 1
    end = find(b"]", start)
    if (
        find(b"-", start, end) >= 0
        or find(b".", start, end) >= 0
        or find(b'"', start, end) >= 0
        or find(b"e", start, end) >= 0  # true, false, 1e300
        or find(b"n", start, end) >= 0  # null
        or find(b"[", start, end) >= 0
    ):
        raise ConfigurationError("input_ids must be a flat sequence of integers from 0 up")
