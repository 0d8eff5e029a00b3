"""A session answers agents in three protocols, with turns of one episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strands_sglang.gateway import server
from strands_sglang.gateway.call import arguments_of
from strands_sglang.gateway.echoes import Echo, echo_of
from strands_sglang.tokens import Join
from strands_sglang.tool_parsers._json import JsonReader
from support.gateway.agents import PATHS, WireAgent, WireError
from support.gateway.opened import opened
from support.scripted_engine import assert_exact, thought, tool_call

PROTOCOLS = list(PATHS)


def a_script() -> list[Any]:
    return [
        thought("Look first.", "Let me look.\n" + tool_call("run", command="ls", times=1.0)),
        thought("Now two.", tool_call("run", command="cat a", times=2) + "\n" + tool_call("run", command="cat b")),
        thought("Done.", "It is fixed. "),
    ]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_agent_gets_one_branch_and_each_token_is_trained(protocol: str, streams: bool) -> None:
    async with opened(a_script()) as it:
        agent = it.agent(protocol, streams=streams)
        assert await agent.run("Fix the bug.") == "It is fixed."
        assert it.joins == ["root", "proved", "proved"]
        assert_exact(it.engine, it.episode)
        (trajectory,) = it.episode.trajectories()
        assert int(trajectory.loss_mask.sum()) == sum(len(turn.sampled) for turn in it.episode.tree)
        assert [turn.detail.get("echoes") for turn in it.episode.tree] == [None, ["exact"], ["exact"]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_key_is_as_good_as_an_address(protocol: str) -> None:
    async with opened(["one", "two", "three"]) as it:
        for headers in ({"Authorization": f"Bearer {it.session.token}"}, {"x-api-key": it.session.token}):
            agent = WireAgent(it.http, it.gateway.address, protocol, headers=headers)
            agent.say("Hello.")
            await agent.ask()
        both = {"Authorization": "Bearer of-another-service", "x-api-key": it.session.token}
        agent = WireAgent(it.http, it.gateway.address, protocol, headers=both)
        agent.say("Hello.")
        await agent.ask()
        agent = WireAgent(it.http, it.gateway.address, protocol, headers={"x-api-key": "0" * 32})
        agent.say("Hello.")
        with pytest.raises(WireError) as error:
            await agent.ask()
        assert error.value.status == 404
        assert error.value.headers["x-should-retry"] == "false"


def dropped_reasoning(history: list[Any]) -> list[Any]:
    for message in history:
        message.pop("reasoning_content", None)
    return history


def written_again(history: list[Any]) -> list[Any]:
    for message in history:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            function["arguments"] = (
                function["arguments"].replace("1.0", "1").replace("}", ' , "cwd" : null }').replace(":", " : ")
            )
    return history


@pytest.mark.parametrize(
    ("edit", "echoes"),
    [
        (dropped_reasoning, ["reasoning_dropped"]),
        (written_again, ["added_keys", "numbers"]),
        (lambda history: [{**one, "content": f"{one['content']} \n"} if one.get("content") else one for one in history],
         ["trimmed"]),
    ],
    ids=["reasoning", "arguments", "trimmed"],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["keep", "fork", "refuse"])
async def test_a_changed_echo_is_kept_forked_or_refused(
    edit: Callable[[list[Any]], list[Any]], echoes: list[str], policy: str
) -> None:
    async with opened(a_script(), options={"on_changed_echo": policy}) as it:
        agent = it.agent("chat")
        agent.say("Fix the bug.")
        calls, _ = agent.add(await agent.ask())
        agent.result(calls[0]["id"], "a b")
        changed = [*edit(agent.history[:2])[1:2]]
        agent.history[1:2] = changed
        if policy == "refuse":
            with pytest.raises(WireError, match="on_changed_echo"):
                await agent.ask()
            return
        await agent.ask()
        assert_exact(it.engine, it.episode)
        if policy == "keep":
            assert it.joins == ["root", "proved"]
            assert it.episode.tree[1].detail["echoes"] == echoes
            assert not it.episode.tree.rejected
        else:
            assert it.joins == ["root", "forked"]
            assert it.episode.tree.rejected == {0}


async def test_an_exact_copy_is_not_refused_because_it_resembles_another_reply() -> None:
    async with opened([thought("r", "Done."), "Done.", "More."], options={"on_changed_echo": "refuse"}) as it:
        agents = [it.agent("chat") for _ in range(2)]
        for agent in agents:
            agent.say("Fix the bug.")
            agent.add(await agent.ask())
        agents[1].say("And now?")
        await agents[1].ask()
        assert [turn.parent for turn in it.episode.tree] == [None, None, 1]
        assert it.episode.tree[2].detail["echoes"] == ["exact"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_numbers_that_few_can_hold_come_back_as_they_were_sampled(protocol: str) -> None:
    numbers = {"n": 12345678901234567890123, "least": -(1 << 63) - 1, "zero": -0.0, "one": 1.0, "large": 1e300}
    async with opened([thought("Hm.", tool_call("run", **numbers)), "Done."]) as it:
        assert await it.agent(protocol).run("Fix the bug.") == "Done."
        assert it.joins == ["root", "proved"]
        assert it.episode.tree[1].detail["echoes"] == ["exact"]


@pytest.mark.parametrize(
    ("sampled", "copied", "echo"),
    [
        ("12345678901234567890123", "12345678901234567890123", Echo.EXACT),
        ("12345678901234567890123", "12345678901234567890124", None),
        ("12345678901234567890123", "1.2345678901234568e+22", None),
        ("18446744073709551615", "18446744073709551616", None),
        ("1.0", "1", Echo.NUMBERS),
        ("1", "1.0", Echo.NUMBERS),
        ("1e2", "100.0", Echo.EXACT),
        ("-0.0", "-0.0", Echo.EXACT),
        ("-0.0", "0", Echo.NUMBERS),
        ("0.1", "0.10000000000000001", Echo.EXACT),
        ("1e308", "1e400", None),
        ("1", "true", None),
        ("1", '"1"', None),
    ],
)
def test_numbers_are_compared_by_value(sampled: str, copied: str, echo: Echo | None) -> None:
    (reply, copy) = (
        [{"toolUse": {"toolUseId": "a", "name": "run", "input": made}}]
        for made in (JsonReader(f'{{"n": {sampled}}}').read(0)[0], arguments_of(f'{{"n": {copied}}}'))
    )
    assert echo_of(reply, copy) == (None if echo is None else {echo})


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_a_result_is_never_part_of_a_reply(protocol: str) -> None:
    """A reply with neither text nor calls has no content."""
    agent = WireAgent(None, "", protocol)  # type: ignore[arg-type]
    agent.say("Hello.")
    agent.history.append({"role": "assistant", "content": None})
    agent.result("a", "x")
    (codec,) = (one for one in server.PROTOCOLS if one.name == protocol)
    roles = [message["role"] for message in codec.read(agent._body(agent.history), {}, {}).messages]
    assert roles == ["user", "assistant", "user"]


async def test_an_edited_reply_forks_and_is_not_trained() -> None:
    async with opened(a_script()) as it:
        agent = it.agent("chat")
        agent.say("Fix the bug.")
        calls, _ = agent.add(await agent.ask())
        agent.result(calls[0]["id"], "a b")
        agent.history[1]["content"] = "Let me look!"
        await agent.ask()
        assert it.episode.tree[1].join is Join.FORKED
        assert it.episode.tree.rejected == {0}
        assert_exact(it.engine, it.episode)


async def test_a_reply_with_a_result_in_it_is_no_echo() -> None:
    """What no reply can hold is told, and not dropped, if the rest of the copy is equal."""
    async with opened(a_script()) as it:
        agent = it.agent("messages")
        agent.say("Fix the bug.")
        calls, _ = agent.add(await agent.ask())
        result = {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "a b"}
        agent.history[1]["content"].append(result)
        agent.say("And now?")
        with pytest.raises(WireError, match="cannot be rendered inside an assistant message"):
            await agent.ask()
        assert it.joins == ["root"]
