"""What real agents sent, replayed request by request against a scripted engine: how each conversation goes on.

The logs are not in the repository. They are in the folder `$STRANDS_SGLANG_WIRE_LOGS`: a file for each agent, with
requests and replies as `replayed` reads them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.gateway.agents import REPLIES
from support.gateway.opened import Opened, opened
from support.scripted_engine import assert_exact, thought, tool_call

LOGS = os.environ.get("STRANDS_SGLANG_WIRE_LOGS")
SHARED = ("tools", "system", "instructions")  # fields of a body that a log may have once only

EXPECTED: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "agents-sdk-chat": (1, 4, 1, {"reasoning_dropped": 5}),
    "agents-sdk-resp": (1, 4, 1, {"exact": 5}),
    "anthropic-sdk": (1, 4, 0, {"exact": 4}),
    "claude-agent-sdk": (2, 5, 2, {"exact": 3, "added_keys": 4}),
    "claude-code": (2, 6, 1, {"exact": 4, "added_keys": 3}),
    "claude-code-multi": (4, 9, 5, {"exact": 6, "added_keys": 8}),
    "claude-code-nobetas": (2, 6, 1, {"exact": 4, "added_keys": 3}),
    "claude-code-odd": (2, 6, 1, {"exact": 4, "added_keys": 3}),
    "claude-code-side": (3, 6, 1, {"exact": 4, "added_keys": 3}),
    "codex": (1, 4, 0, {"exact": 4}),
    "codex-odd": (1, 4, 0, {"exact": 4}),
    "codex-resume": (1, 4, 1, {"exact": 5}),
    "langgraph-anthropic": (1, 4, 0, {"exact": 4}),
    "langgraph-chat": (1, 4, 0, {"reasoning_dropped": 4}),
    "langgraph-resp": (1, 4, 0, {"exact": 4}),
    "mini-swe": (1, 4, 0, {"exact": 4}),
    "mini-text": (1, 4, 0, {"exact": 4}),
    "openai-sdk": (1, 4, 0, {"exact": 4}),
    "opencode": (2, 5, 0, {"exact": 5}),
    "opencode-odd": (2, 2, 0, {"exact": 2}),
    "openhands": (1, 4, 0, {"reasoning_dropped": 4}),
    "pydantic-anthropic": (1, 4, 0, {"exact": 4}),
    "pydantic-chat": (1, 4, 0, {"exact": 4}),
    "pydantic-resp": (1, 4, 0, {"exact": 4}),
    "qwen-code": (1, 4, 0, {"exact": 4}),
    "qwen-code-odd": (1, 1, 0, {"exact": 1}),
    "smol-code": (5, 0, 0, {}),
    "smol-tool": (5, 0, 0, {}),
    "vercel-anthropic": (1, 4, 0, {"added_keys": 4, "numbers": 4}),
    "vercel-chat": (1, 4, 0, {"added_keys": 4, "numbers": 4}),
    "vercel-resp": (1, 4, 0, {"added_keys": 4, "numbers": 4}),
}
"""By log: roots, joins that are proved, joins that are kept, and copies of replies by how they differ."""

pytestmark = pytest.mark.skipif(LOGS is None, reason="STRANDS_SGLANG_WIRE_LOGS is not set")


def said(reply: dict[str, Any]) -> str:
    """Return what the model wrote."""
    calls = [tool_call(name, **given) for name, given in reply["calls"]]
    text = "\n".join(filter(None, [reply["text"].rstrip("\n"), *calls]))
    return thought(reply["reason"].strip(), text) if reply["reason"] else text


def ids_in(reply: dict[str, Any]) -> list[str]:
    """Return the ids that later requests may have, of a reply in any protocol, or of its record."""
    if "choices" in reply:
        reply = {"calls": reply["choices"][0]["message"].get("tool_calls")}
    items = (
        reply.get("calls") or reply.get("items") or reply.get("blocks") or reply.get("output") or reply.get("content")
    )
    return [one[key] for one in items or () for key in ("id", "call_id") if key in one]


async def replayed(it: Opened, rows: list[dict[str, Any]]) -> None:
    """Send the requests of a log in order, with the ids of this session in place of the recorded ones."""
    bodies: dict[int, Any] = {row["n"]: row.get("body") for row in rows if row["kind"] == "request"}
    replies = {row["n"]: row for row in rows if row["kind"] == "reply"}
    known: dict[str, str] = {}
    for row in rows:
        url = it.gateway.base_url(it.session) + row.get("path", "").removeprefix("/s/abc")
        if row.get("method") == "HEAD":
            async with it.http.head(url) as response:
                assert response.status == 200
        elif row["kind"] == "request" and row["n"] in replies:
            body = dict(row["body"])
            for name in SHARED:
                while isinstance(body.get(name), dict):
                    body[name] = bodies[body[name]["same_as_request"]][name]
            data = json.dumps(body)
            for old, new in known.items():
                data = data.replace(f'"{old}"', f'"{new}"')
            headers = {name: value for name, value in row["headers"].items() if name.lower().startswith("x-claude")}
            async with it.http.post(url, data=data, headers=headers) as response:
                text = await response.text()
                assert response.status == 200, text
            protocol = next(name for name in REPLIES if name in url.replace("completions", "chat"))
            made = REPLIES[protocol](text) if body.get("stream") else json.loads(text)
            known |= zip(ids_in(replies[row["n"]]), ids_in(made), strict=True)
            for sent in filter(None, (replies[row["n"]]["reply"][name] for name in ("text", "reason"))):
                known[json.dumps(sent)[1:-1]] = json.dumps(sent.strip())[1:-1]  # as the gateway sends it


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_agent_s_requests_become_its_branches(name: str) -> None:
    rows = [json.loads(line) for line in (Path(LOGS or "") / f"{name}.jsonl").read_text().splitlines()]
    replies = [said(row["reply"]) for row in rows if row["kind"] == "reply"]
    async with opened(replies) as it:
        await replayed(it, rows)
        joins = Counter(it.joins)
        echoes = Counter(echo for turn in it.episode.tree for echo in turn.detail.get("echoes", ()))
        assert (joins["root"], joins["proved"], joins["kept"], echoes) == EXPECTED[name]
        assert joins.total() == len(replies) == sum(EXPECTED[name][:3])
        assert_exact(it.engine, it.episode)
