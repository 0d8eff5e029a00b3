"""The body of a `/generate` request, how it changes when an interrupted turn is continued, and its sampling parameters.

Request ids have a fixed length because the engine aborts by *prefix* of the id: with ids of different lengths, aborting
one request could end another. Names of sampling parameters are checked here: some versions of the engine ignore an
unknown name, and a run would sample differently from what it specifies.

Invariants:

- The ids sent are exactly the caller's ids, followed by every token sampled so far in this call. Ids are encoded once.
  Of the placeholders of an image only one is sent, as the engine expects; its answer says which ids it computed.
- An unknown sampling parameter is refused before anything is sent; names are never dropped or changed.
"""

from __future__ import annotations

import logging
import os
from array import array
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from strands_sglang._checks import did_you_mean
from strands_sglang.engine.protocol import PromptImage, TokenIds
from strands_sglang.errors import ConfigurationError
from strands_sglang.tokens.images import compact

logger = logging.getLogger(__name__)

# Fields that the client sets.
_RESERVED = frozenset(
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
_WITH_IMAGES = _RESERVED | {"image_data", "return_prompt_token_ids"}

_WHOLE_VOCABULARY = 1 << 30  # SGLang's own number for top_k = -1

# Parameters whose effect depends on the tokens already sampled in the same request, with the values that disable them.
# A turn that uses one cannot be continued by another request, because the state is lost with the first.
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
    "watermark": (None,),  # SGLang 0.5.23; depends on the tokens before
}


def can_continue(sampling: Mapping[str, Any], extra: Mapping[str, Any] | None) -> bool:
    """Return whether an interrupted request with these parameters can be continued exactly by another request."""
    if not isinstance(sampling.get("max_new_tokens"), int) or (extra and "custom_logit_processor" in extra):
        return False
    return all(sampling[name] in neutral for name, neutral in _STATEFUL.items() if name in sampling)


def remaining_sampling(sampling: Mapping[str, Any], used: int) -> dict[str, Any]:
    """Return the sampling parameters for the rest of a turn of which `used` tokens were sampled."""
    rest = dict(sampling)
    for name in ("max_new_tokens", "min_new_tokens"):
        if rest.get(name):
            rest[name] = max(0, rest[name] - used)
    return rest


def has_kept_sets(sampling: Mapping[str, Any]) -> bool:
    """Return whether top-p, top-k or min-p leave out tokens, so that each sampled token has a kept set.

    Greedy sampling (temperature 0) always takes the most likely token, so nothing is lost by not knowing the others.
    """
    if sampling.get("temperature") == 0:
        return False
    top_p, top_k, min_p = (sampling.get(name) for name in ("top_p", "top_k", "min_p"))
    return (
        (top_p is not None and top_p < 1.0)
        or (top_k is not None and 0 < top_k < _WHOLE_VOCABULARY)
        or (min_p is not None and min_p > 0)
    )


def request_fields(
    fields: Mapping[str, Any], experts_start: int | None, extra: Mapping[str, Any] | None
) -> tuple[int | None, dict[str, Any]]:
    """Translate fields of SGLang's request into the first position of routed experts, and all further fields."""
    rest = {**(extra or {}), **fields}
    if rest.pop("return_logprob", None) is False:
        logger.debug("return_logprob=<False> | logprobs are requested anyway")
    if rest.pop("stream", False):
        raise ConfigurationError("generate does not stream: leave stream out, or use SGLangClient.stream")
    start = rest.pop("routed_experts_start_len", 0)
    if rest.pop("return_routed_experts", False) and experts_start is None:
        experts_start = int(start)
    return experts_start, rest


_RID_AT = len(b'{"rid":"')
_RID_LENGTH = 36
_IDS_AT = _RID_AT + _RID_LENGTH + len(b'","input_ids":')


class GenerateRequest:
    """The body of a `/generate` call, encoded once and patched for further attempts."""

    def __init__(
        self,
        input_ids: TokenIds,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        routed_experts_start: int | None = None,
        extra: Mapping[str, Any] | None = None,
        images: Sequence[PromptImage] = (),
        kept_sets: bool = False,
        session: str | None = None,
    ) -> None:
        self.call_id = os.urandom(16).hex()
        """32 hex digits, the common prefix of all request ids of this call."""
        self.prompt_tokens = len(input_ids)
        """Tokens in the prompt, counting every position of its images; grows when the turn is continued."""
        self.computed_ids: array[int] | None = array("i", input_ids) if images else None
        """The ids that the engine must report to have computed; None without images."""
        self.kept_sets = kept_sets
        self._image_data = [image_url(image.png) for image in images]
        self.sampling: Mapping[str, Any] = dict(sampling_params) if sampling_params else {}
        """Replaced, not modified, when the turn is continued."""
        self._stream = stream
        self.experts_start = routed_experts_start
        self.extra = extra
        self.adapter: str | None = (extra.get("lora_path") or None) if extra else None
        """The LoRA adapter that samples; None: the base weights."""
        self.session = session
        if not self.prompt_tokens or extra or "n" in self.sampling:
            self._check()
        if self.computed_ids is not None:
            input_ids = _compact(self.computed_ids, images)
        self._body = self._encode(_encodable(input_ids))
        _check_ids(self._body)

    def _check(self) -> None:
        if not self.prompt_tokens:
            raise ConfigurationError("input_ids must hold at least one token, got none")
        if self.sampling.get("n", 1) != 1:
            raise ConfigurationError(
                f"sampling_params['n'] must be 1, got {self.sampling['n']!r}: make one call per sample"
            )
        reserved = _WITH_IMAGES if self._image_data else _RESERVED
        if self.kept_sets:
            reserved = reserved | {"return_sampling_mask", "sampling_logprobs_mode"}
        if self.session is not None:
            reserved = reserved | {"session_id", "session_params"}
        if self.extra and not reserved.isdisjoint(self.extra):
            names = ", ".join(sorted(reserved.intersection(self.extra)))
            raise ConfigurationError(f"extra must not contain {names}: the client sets it")

    @property
    def needs_more(self) -> bool:
        """Whether the answer must have something that not every router asks the engine for."""
        return self.kept_sets or bool(self._image_data) or self.experts_start is not None

    @property
    def asks_for_more(self) -> bool:
        """Whether the request has a field that not every router forwards, needed or not."""
        return self.needs_more or self.session is not None

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
        """Append sampled tokens to the prompt and take them off the budget."""
        if not len(token_ids):
            return
        self.prompt_tokens += len(token_ids)
        if self.computed_ids is not None:
            self.computed_ids += token_ids
        if experts_start is not None:
            self.experts_start = experts_start
        self.sampling = remaining_sampling(self.sampling, len(token_ids))
        so_far = self._body[_IDS_AT : self._body.index(b"]", _IDS_AT)]
        new = orjson.dumps(_encodable(token_ids), option=orjson.OPT_SERIALIZE_NUMPY)
        self._body = self._encode(orjson.Fragment(b"".join((so_far, b",", new[1:]))))

    def _encode(self, ids: Any) -> bytes:
        # The order matters: `body` and `extend` find the rid, which has a fixed length, and the ids by offset.
        fields: dict[str, Any] = {
            "rid": self.rid(0),
            "input_ids": ids,
            "sampling_params": self.sampling,
            "return_logprob": True,
            "stream": self._stream,
        }
        if self.experts_start is not None:
            fields["return_routed_experts"] = True
            fields["routed_experts_start_len"] = self.experts_start
        if self._image_data:
            fields["image_data"] = self._image_data
            fields["return_prompt_token_ids"] = True
        if self.kept_sets:
            fields["return_sampling_mask"] = True
            fields["sampling_logprobs_mode"] = "selected"
        if self.session is not None:
            fields["session_id"] = self.session
        if self.extra:
            fields.update(self.extra)
        try:
            return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            raise ConfigurationError(
                f"input_ids must be a flat sequence of integers, sampling_params and extra must be plain JSON: {error}"
            ) from error


def image_url(png: bytes) -> str:
    """Return an image as the engine takes it."""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _compact(ids: array[int], images: Sequence[PromptImage]) -> array[int]:
    """Return the ids with one placeholder for each image."""
    at = 0
    for start, positions, *_ in images:
        end = start + positions
        if start < at or positions < 1 or end > len(ids) or ids[start:end].count(ids[start]) != positions:
            raise ConfigurationError(
                f"an image must be at {positions} equal ids from position {start} on, after the image before it"
            )
        at = end
    return compact(ids, images)


def _encodable(ids: TokenIds) -> Any:
    """Return ids in a form that orjson encodes, without creating Python ints where possible."""
    if isinstance(ids, (list, tuple)):
        return ids
    if isinstance(ids, array):
        if ids.typecode not in "bBhHiIlLqQ":
            raise ConfigurationError(f"input_ids must be integers, got array({ids.typecode!r})")
        return np.frombuffer(ids, dtype=f"{'i' if ids.typecode.islower() else 'u'}{ids.itemsize}")
    if isinstance(ids, np.ndarray):
        return np.ascontiguousarray(ids)
    return list(ids)


def _check_ids(body: bytes) -> None:
    """Raise ConfigurationError unless the ids in an encoded body are integers >= 0.

    An id outside the vocabulary can crash an engine, and a retry would then crash the next one. Scanning for single
    bytes is a hundred times cheaper than checking each number.
    """
    start, end = _IDS_AT + 1, body.find(b"]", _IDS_AT + 1)
    # e is in true, false and 1e300, n in null
    if any(body.find(mark, start, end) >= 0 for mark in (b"-", b".", b'"', b"e", b"n", b"[")):
        raise ConfigurationError("input_ids must be a flat sequence of integers >= 0")


KNOWN = frozenset(
    {
        "beam_width",
        "custom_params",
        "ebnf",
        "frequency_penalty",
        "ignore_eos",
        "json_schema",
        "logit_bias",
        "max_new_tokens",
        "min_new_tokens",
        "min_p",
        "n",
        "no_stop_trim",
        "presence_penalty",
        "regex",
        "repetition_penalty",
        "sampling_seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_regex",
        "stop_token_ids",
        "stream_interval",
        "structural_tag",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""The parameters that `SamplingParams` of SGLang 0.5.21 accepts from a caller."""

# Names that other engines use for the same parameter.
_ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop_sequences": "stop",
}


def check_sampling_names(names: Iterable[str], more: Collection[str] = ()) -> None:
    """Refuse unknown names, suggesting the closest known one; `more` are further names that this server supports."""
    for name in names:
        if name in KNOWN or name in more:
            continue
        hint = did_you_mean(name, KNOWN, meant=_ELSEWHERE.get(name))
        raise ConfigurationError(
            f"SGLang has no sampling parameter {name!r}{hint} Known: {', '.join(sorted(KNOWN))}. For a parameter that "
            f"only your server knows, pass SGLangClient(sampling_names=[{name!r}]); for logit processors, custom_params"
        )
