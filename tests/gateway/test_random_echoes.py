"""Random conversations whose replies come back changed: an echo continues its branch, anything else forks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from itertools import dropwhile
from typing import Any

import pytest

from strands_sglang import SGLangModel
from strands_sglang.gateway.chat_completions import ChatCompletions
from strands_sglang.gateway.session import Session
from strands_sglang.provider.episode import EpisodeTokens
from strands_sglang.tokens import Join
from support.examples import SOAK
from support.families import tokenizer
from support.scripted_engine import ScriptedEngine, assert_exact, thought, tool_call

FUNCTION = {"name": "run", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
PROTOCOL = ChatCompletions()
WORDS = ("fix", "the", "bug", "é", "<|im_end|>", "\n", "1", "it's")


def reply(rng: random.Random) -> str:
    """Return a random turn: reasoning or none, text or none, calls or none."""
    text = " ".join(rng.choices(WORDS[:4], k=rng.randint(1, 4))) if rng.random() < 0.6 else ""
    calls = [
        tool_call("run", command=" ".join(rng.choices(WORDS, k=2)), times=rng.choice([1, 1.0, 2.5]), deep={"a": [1.0]})
        for _ in range(rng.randint(0, 2))
    ]
    body = "\n".join(filter(None, [text or ("" if calls else "done"), *calls]))
    return thought(f"Think {rng.random()}.", body) if rng.random() < 0.7 else body


def echoed(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy that is still an echo."""
    copy: dict[str, Any] = json.loads(json.dumps(message))
    if rng.random() < 0.5:
        copy.pop("reasoning_content", None)
    if copy.get("content") and rng.random() < 0.5:
        copy["content"] = f" {copy['content']}\n"
    for call in copy.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])
        if rng.random() < 0.5:
            arguments = dict(reversed(arguments.items()))
        if rng.random() < 0.5:
            arguments = {"cwd": None, **arguments, "deep": {**arguments["deep"], "b": []}}
        if rng.random() < 0.5 and arguments["times"] == int(arguments["times"]):
            arguments["times"] = int(arguments["times"])
        call["function"]["arguments"] = json.dumps(arguments, indent=rng.choice([None, 2]))
    return copy


def edited(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy in which one thing is another: a character, an argument, an id, a call."""
    copy: dict[str, Any] = json.loads(json.dumps(message))
    edits = list[Callable[[], Any]]()
    if copy.get("content"):
        at = rng.randrange(len(copy["content"]))
        edits.append(lambda: copy.update(content=f"{copy['content'][:at]}x{copy['content'][at:]}"))
    if copy.get("reasoning_content"):
        edits.append(lambda: copy.update(reasoning_content=f"{copy['reasoning_content']}x"))
    for call in copy.get("tool_calls") or ():
        arguments = json.loads(call["function"]["arguments"])

        def change(call: Any, new: Any) -> None:
            call["function"]["arguments"] = json.dumps(new)

        less = {key: value for key, value in arguments.items() if key != "times"}
        edits += [
            partial(call.update, id=f"{call['id'][:-1]}{'a' if call['id'][-1] != 'a' else 'b'}"),
            partial(change, call, {**arguments, "command": f"{arguments['command']}x"}),
            partial(change, call, {**arguments, "times": arguments["times"] + 1}),
            partial(change, call, {**arguments, "times": str(arguments["times"])}),
            partial(change, call, less),
            partial(call["function"].update, name="other"),
        ]
    if len(copy.get("tool_calls") or ()) == 2:
        edits += [lambda: copy["tool_calls"].pop(), lambda: copy["tool_calls"].reverse()]
    rng.choice(edits)()
    return copy


async def converse(seed: int) -> None:
    """Play one conversation; check each turn."""
    rng = random.Random(seed)
    engine = ScriptedEngine(tokenizer("qwen3"), [reply(rng) for _ in range(8)])
    model = SGLangModel(tokenizer=tokenizer("qwen3"), client=engine)
    session = Session(model, EpisodeTokens(f"t/{seed}"))
    tree = session.episode.tree
    history: list[Any] = [{"role": "user", "content": "Go."}]
    turns: list[tuple[int, int, dict[str, Any]]] = []  # id, place in the history, message as it was sent
    prompts = dict[int, list[Any]]()  # of the turns that no later history continues or contradicts
    kept = set[int]()
    for number in range(rng.randint(3, 7)):
        whole, draw, cut = history, rng.random(), len(history)
        if turns and draw < 0.2:
            _, cut, message = rng.choice(turns)
            history = [*history[:cut], edited(message, rng), *history[cut + 1 :]]
        elif turns and draw < 0.4:
            cut = rng.randrange(1, len(history))
            after = history[cut + 1 :]
            if [one["role"] for one in history[cut - 1 : cut + 1]] == ["tool", "assistant"]:
                # Results that follow each other are one message: nothing would tell that a reply was between them.
                after = list(dropwhile(lambda one: one["role"] == "tool", after))
            history = [*history[:cut], *after]
        left = [one for one in turns if one[1] < cut]
        sent = json.loads(json.dumps(history))
        for _, at, message in left:
            sent[at] = echoed(message, rng)
        body = {"model": "policy", "messages": sent, "tools": TOOLS}
        with session.ask(PROTOCOL, PROTOCOL.read(body, {}, {}), (number,)) as exchange:
            answer = await exchange.answer()
            assert answer is not None
            session.delivered(exchange)
        turn = tree[int(answer.id)]
        # Nothing is continued that was replied from the change on: the branch begins anew, or leaves before that.
        continued = {one for one, _, _ in left}
        assert {one.id for one in tree.path(turn)} <= continued | {turn.id}
        if turns and history is whole:
            assert turn.parent == turns[-1][0]
            assert turn.join in (Join.PROVED, Join.KEPT)
        for id, prompt in list(prompts.items()):
            same = history[: len(prompt)] == prompt
            if same and [one["role"] for one in history[len(prompt) - 1 : len(prompt) + 1]] != ["tool", "tool"]:
                del prompts[id]
                kept -= {id} - continued  # there is something else in its place
        turns = left
        prompts[turn.id] = history
        kept.add(turn.id)
        message = PROTOCOL.body(answer)["choices"][0]["message"]
        turns.append((turn.id, len(history), message))
        calls = message.get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
        history = [*history, message, *(results or [{"role": "user", "content": "More."}])]
    check(engine, session, kept)


def check(engine: ScriptedEngine, session: Session, kept: set[int]) -> None:
    assert_exact(engine, session.episode)
    assert {turn.id for turn in session.episode.tree if not turn.rejected} == kept


@pytest.mark.parametrize("start", range(0, 10_000 if SOAK else 200, 100))
async def test_an_echo_continues_and_an_edit_forks(start: int) -> None:
    for seed in range(start, start + 100):
        await converse(seed)
