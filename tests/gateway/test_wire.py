"""What agents do to their histories on the wire, as small cases of each: how the conversation goes on.

The agents themselves run in `scripts/agents` and tests/gateway/test_sdks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.gateway.agents import WireAgent, WireError
from support.gateway.opened import Opened, opened
from support.scripted_engine import assert_exact, thought, tool_call

History = list[Any]


def script() -> list[str]:
    return [
        thought("Look first.", "Let me look.\n" + tool_call("run", command="ls", times=1.0)),
        thought("Now two.", tool_call("run", command="cat a", times=2) + "\n" + tool_call("run", command="cat b")),
        thought("Done.", "It is fixed."),
    ]


def each(kind: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[History], History]:
    """Return an edit of all messages or items with a role or type."""

    def edit(history: History) -> History:
        for one in history:
            if kind in (one.get("role"), one.get("type")):
                change(one)
        return history

    return edit


def moved_cache_control(history: History) -> History:
    """The last block has the mark, whatever it was before; a text is a list of one block only while it has it."""
    for message in history:
        if isinstance(message["content"], list):
            message["content"] = [
                {key: value for key, value in block.items() if key != "cache_control"} for block in message["content"]
            ]
    last = history[-1]
    if isinstance(last["content"], str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    last["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return history


def references(history: History) -> History:
    """What the server knows is named by its id."""
    return [
        {"type": "item_reference", "id": one["id"]} if one.get("type") in ("reasoning", "message", "function_call")
        and one.get("id") else one
        for one in history
    ]  # fmt: skip


def as_strings(one: dict[str, Any]) -> None:
    if isinstance(one.get("content"), list):
        one["content"] = one["content"][0]["text"]


def defaults(one: dict[str, Any]) -> None:
    """Keys in the order of the agent's schema, with its defaults, and numbers as JavaScript writes them."""
    for block in one["content"]:
        if block["type"] == "tool_use":
            times = block["input"].get("times")
            number = {} if times is None else {"times": int(times)}
            block["input"] = {**number, "command": block["input"]["command"], "replace_all": False}


def litellm(one: dict[str, Any]) -> None:
    one |= {"provider_specific_fields": {"refusal": None}, "annotations": [], "function_call": None, "refusal": None}
    for call in one.get("tool_calls") or ():
        call["provider_specific_fields"] = None


def as_parts(one: dict[str, Any]) -> None:
    one["content"] = [{"type": "text", "text": one["content"]}]


def without_content(one: dict[str, Any]) -> None:
    if not one["content"]:
        del one["content"]


CASES: list[tuple[str, str, Callable[[History], History], list[str]]] = [
    ("litellm", "chat", each("assistant", litellm), ["exact"]),
    ("no key", "chat", each("assistant", without_content), ["exact"]),
    ("empty", "chat", each("assistant", lambda one: one.update(content=one["content"] or "")), ["exact"]),
    ("parts", "chat", each("user", as_parts), ["exact"]),
    ("langchain", "chat", each("assistant", lambda one: one.pop("reasoning_content", None)), ["reasoning_dropped"]),
    ("qwen code", "chat",
     each("assistant", lambda one: one.update(reasoning_content=one["reasoning_content"].strip())), ["exact"]),
    ("codex", "responses", each("function_call", lambda one: one.pop("status")), ["exact"]),
    ("ai sdk", "responses", references, ["exact"]),
    ("strings", "responses", each("message", as_strings), ["exact"]),
    ("no ids", "responses", each("function_call", lambda one: one.pop("id")), ["exact"]),
    ("cache", "messages", moved_cache_control, ["exact"]),
    ("defaults", "messages", each("assistant", defaults), ["added_keys", "numbers"]),
    ("signature", "messages",
     each("assistant", lambda one: [block.pop("signature", None) for block in one["content"]]), ["exact"]),
]  # fmt: skip


async def talk(it: Opened, agent: WireAgent, edit: Callable[[History], History]) -> None:
    agent.say("Fix the bug.")
    while True:
        calls, _ = agent.add(await agent.ask(edit))
        if not calls:
            return
        for call in calls:
            agent.result(call["id"], "a b")


@pytest.mark.parametrize(("protocol", "edit", "echoes"), [one[1:] for one in CASES], ids=[one[0] for one in CASES])
async def test_a_copy_in_an_agent_s_own_way_is_an_echo(
    protocol: str, edit: Callable[[History], History], echoes: list[str]
) -> None:
    async with opened(script()) as it:
        await talk(it, it.agent(protocol), edit)
        assert it.joins == ["root", "proved", "proved"]
        found = {echo for turn in it.episode.tree for echo in turn.detail.get("echoes", ())}
        assert sorted(found) == echoes
        assert not it.episode.tree.rejected
        assert_exact(it.engine, it.episode)


async def test_the_line_of_a_conversation_in_a_system_prompt_is_left_out() -> None:
    """Claude Code: it differs between the conversations of a session, and after a compaction."""
    for end in ("abc;", "xyz;"):
        async with opened(["one"]) as it:
            billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{end}"}
            system = [billing, {"type": "text", "text": "You fix bugs.", "cache_control": {"type": "ephemeral"}}]
            agent = it.agent("messages", more={"system": system})
            assert await agent.run("Hello.") == "one"
            prompt = it.engine.decode(it.engine.calls[0].ids)
            assert "billing" not in prompt and "You fix bugs." in prompt


@pytest.mark.parametrize(
    ("protocol", "role"), [("chat", "developer"), ("responses", "developer"), ("messages", "system")]
)
async def test_a_system_message_inside_a_conversation_is_shown(protocol: str, role: str) -> None:
    """Codex and Claude Code; the next step still continues after the tokens that were sampled."""
    async with opened([*script()[:1], "It is fixed."]) as it:
        agent = it.agent(protocol)
        agent.say("Fix the bug.")
        calls, _ = agent.add(await agent.ask())
        agent.result(calls[0]["id"], "a b")
        agent.history.append({"role": role, "content": "Be brief."})
        await agent.ask()
        assert it.joins == ["root", "kept"]
        assert "Be brief." in it.engine.decode(it.engine.calls[1].ids)
        assert_exact(it.engine, it.episode)


async def test_a_reply_that_the_agent_throws_away_is_not_trained() -> None:
    """mini-swe-agent: a reply without a call is dropped, and an error message takes its place."""
    async with opened(["I do not know.", *script()[:1], "Done."]) as it:
        agent = it.agent("chat")
        agent.say("Fix the bug.")
        await agent.ask()
        agent.say("No tool call found. Every reply must have one.")
        calls, _ = agent.add(await agent.ask())
        agent.result(calls[0]["id"], "a b")
        await agent.ask()
        assert [turn.parent for turn in it.episode.tree] == [None, None, 1]
        assert it.episode.tree.rejected == {0}
        assert_exact(it.engine, it.episode)


async def test_calls_as_text_are_branches_of_their_own() -> None:
    """smolagents: nothing of it is an echo, and nothing is guessed."""
    async with opened(script()) as it:
        agent = it.agent("chat")
        agent.say("Fix the bug.")
        for _ in range(2):
            message = (await agent.ask())["choices"][0]["message"]
            told = "".join(f"Calling tools:\n{call['function']}" for call in message["tool_calls"])
            agent.history.append({"role": "assistant", "content": told})
            agent.say("Observation:\na b")
        await agent.ask()
        assert [turn.parent for turn in it.episode.tree] == [None, None, None]
        assert_exact(it.engine, it.episode)


async def test_a_reply_that_was_never_sampled_may_come_first() -> None:
    """Qwen Code begins with an exchange of its own."""
    async with opened(script()) as it:
        agent = it.agent("chat")
        agent.say("This is your setup.")
        agent.history.append({"role": "assistant", "content": "Got it. Thanks for the context!"})
        await talk(it, agent, lambda history: history)
        assert it.joins == ["root", "proved", "proved"]
        assert_exact(it.engine, it.episode)


async def test_tools_that_no_template_knows_are_left_out_and_named() -> None:
    """Codex."""
    async with opened(["one"]) as it:
        tools = [{"type": "namespace", "name": "multi", "tools": []}, {"type": "web_search"}]
        agent = it.agent("responses", more={"tools": tools, "include": ["reasoning.encrypted_content"], "store": False})
        await agent.run("Hello.")
        assert it.episode.tree[0].detail["ignored"] == ["tools: namespace", "tools: web_search"]


async def test_an_item_of_nobody_is_told() -> None:
    async with opened([]) as it:
        agent = it.agent("responses")
        agent.history.append({"type": "item_reference", "id": "msg_7"})
        with pytest.raises(WireError, match="no item of this session has the id 'msg_7'; send the item itself"):
            await agent.ask()
