"""The responses of the loopback server, prepared as bytes: SGLang's `/generate` and OpenAI's chat completions.

Every protocol answers the same turn of the same script with the same number of tokens, so that the server prefers no
client. A streamed answer comes in the fewest events that its protocol allows, because the number of events is the
engine's choice and would only add to the cost of the clients that stream.

Invariant: a prepared body is split where a request's own values go, and nothing else is computed for a request.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_script import TOOL, Answer

_GAP = '"%"'
"""Place of a value that is inserted as it is, quotes included."""
_TOKENS = 2**18
"""Number of tokens of all prepared answers with a tool call: repeated logprobs would compress too well."""
_FINAL = 256
"""Most prepared final answers; fewer if they are long."""


def response(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """Return an HTTP response."""
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


@dataclass(frozen=True)
class Asked:
    """What a response repeats of its request."""

    rid: bytes
    """The request id as a JSON string, with its quotes."""
    prompt_tokens: int
    cached_tokens: int
    calls: int
    """Number of tool calls that the conversation already has."""


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Native:
    """One turn as the body that SGLang 0.5.21 sends for `/generate`, with and without logprobs."""

    def __init__(self, answer: Answer, version: str, rng: random.Random) -> None:
        ids = answer.ids
        logprobs = array("f", (-(rng.random() ** 4) * 3.0 for _ in ids))
        meta = {
            "id": "%",
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "prompt_tokens": "%",
            "weight_version": version,
            "num_retractions": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": [[value, token, None] for value, token in zip(logprobs, ids, strict=True)],
            "output_token_logprobs_length": len(ids),
            "completion_tokens": len(ids),
            "cached_tokens": "%",
            "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
            "dp_rank": None,
            "e2e_latency": 0.061,
        }
        without = {name: value for name, value in meta.items() if "logprobs" not in name}
        self._parts = {
            wanted: _compact({"text": answer.text, "output_ids": ids, "meta_info": fields}).encode().split(b'"%"')
            for wanted, fields in ((True, meta), (False, without))
        }

    def body(self, asked: Asked, logprobs: bool) -> bytes:
        """Return the JSON body."""
        first, second, third, fourth = self._parts[logprobs]
        parts = (first, asked.rid, second, b"%d" % asked.prompt_tokens, third, b"%d" % asked.cached_tokens, fourth)
        return b"".join(parts)

    def http(self, asked: Asked, logprobs: bool, stream: bool) -> bytes:
        """Return the HTTP response; a streamed one has the whole turn in one event."""
        body = self.body(asked, logprobs)
        if stream:
            return response(b"data: %b\n\ndata: [DONE]\n\n" % body, kind=b"text/event-stream")
        return response(body)


class Chat:
    """One turn as OpenAI's chat completion, whole and streamed."""

    def __init__(self, answer: Answer) -> None:
        self._sampled = len(answer.ids)
        call: dict[str, Any] = {}
        if answer.expression is not None:
            function = {"name": TOOL, "arguments": json.dumps({"expression": answer.expression})}
            call = {"id": "%", "type": "function", "function": function}
        why = "tool_calls" if call else "stop"
        message = {"role": "assistant", "content": answer.prose, **({"tool_calls": [call]} if call else {})}
        head = {"id": "chatcmpl-0", "created": 0, "model": "loopback"}
        whole = {**head, "object": "chat.completion", "usage": "%"}
        whole["choices"] = [{"index": 0, "message": message, "finish_reason": why}]
        self._whole = self._pieces(_compact(whole))
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": answer.prose}]
        deltas += [{"tool_calls": [{"index": 0, **call}]}] if call else []
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": why}]})
        events.append({"choices": [], "usage": "%"})
        head["object"] = "chat.completion.chunk"
        self._streamed = self._pieces("".join(f"data: {_compact({**head, **event})}\n\n" for event in events))

    @staticmethod
    def _pieces(body: str) -> tuple[list[bytes], list[bool]]:
        """Split a body at its gaps; say of each gap whether it is the usage (else: the id of the call)."""
        parts = body.split(_GAP)
        return [part.encode() for part in parts], [part.endswith('"usage":') for part in parts[:-1]]

    def http(self, asked: Asked, stream: bool) -> bytes:
        """Return the HTTP response."""
        total = asked.prompt_tokens + self._sampled
        usage = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
        usage %= (asked.prompt_tokens, self._sampled, total)
        parts, gaps = self._streamed if stream else self._whole
        filled = [parts[0]]
        for part, is_usage in zip(parts[1:], gaps, strict=True):
            filled += [usage if is_usage else b'"call_%d"' % asked.calls, part]
        if stream:
            return response(b"%b" % b"".join([*filled, b"data: [DONE]\n\n"]), kind=b"text/event-stream")
        return response(b"".join(filled))


class Replies:
    """All prepared turns of one script."""

    def __init__(self, calls: Sequence[Answer], last: Answer, version: str) -> None:
        rng = random.Random(0)
        repeated = max(1, _TOKENS // (len(calls) * len(calls[0].ids)))
        self.native_calls = [Native(answer, version, rng) for _ in range(repeated) for answer in calls]
        final = max(4, min(_FINAL, _TOKENS // 4 // len(last.ids)))
        self.native_last = [Native(last, version, rng) for _ in range(final)]
        self.chat_calls = [Chat(answer) for answer in calls]
        self.chat_last = Chat(last)

    def native(self, number: int, turns: int, seed: int) -> Native:
        """Return the turn after `number` calls in an episode of `turns` calls."""
        choices = self.native_last if number >= turns else self.native_calls
        return choices[(977 * number + seed) % len(choices)]

    def chat(self, number: int, turns: int, seed: int) -> Chat:
        """Return the same turn as a chat completion."""
        if number >= turns:
            return self.chat_last
        return self.chat_calls[(977 * number + seed) % len(self.native_calls) % len(self.chat_calls)]
