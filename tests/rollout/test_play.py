"""An episode is played in a scope of its own, which nobody else sees."""

from __future__ import annotations

import asyncio
from typing import Any

from rollout.kinds import plain
from rollout.scripts import PromptEngine, steps
from strands_sglang import SGLangModel
from strands_sglang.rollout import Ended, Limits, Task
from strands_sglang.rollout.journal import Journal, within
from strands_sglang.rollout.play import Play
from strands_sglang.rollout.tool_watch import watch_of
from strands_sglang.tokens import Join

LIMITS = Limits()


def played(engine: PromptEngine, id: str = "t/0") -> Play:
    return Play(id, Task("go", id=id.partition("/")[0]), Journal(engine, id))


async def acted(play: Play, build: Any, model: SGLangModel, limits: Limits = LIMITS) -> Any:
    return await asyncio.ensure_future(play.act(build, model, limits, frozenset()))


async def test_each_in_a_scope_of_its_own() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    own = model.current_episode
    seen: dict[str, Any] = {}

    async def build(task: Task, given: SGLangModel) -> Any:
        seen[task.id] = (given.current_episode, watch_of.get())
        await asyncio.sleep(0.01)
        return plain(given)

    plays = [played(engine, f"t{number}/0") for number in range(5)]
    outcomes = await asyncio.gather(*(acted(play, build, model) for play in plays))
    assert [outcome.ended for outcome in outcomes] == [Ended.ANSWERED] * 5
    assert model.current_episode is own and len(own.tree) == 0
    assert watch_of.get() is None and within.get() == ()
    for play in plays:
        episode, watch = seen[play.task.id]
        assert episode is play.tokens and watch.journal is play.journal
        assert len(play.tree) == 3 and play.tree is play.tokens.tree
        assert len(play.messages) == 6


async def test_turns_that_came_too_late_are_not_part_of_it() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    play = played(engine)
    await acted(play, lambda task, model: plain(model), model)
    whole = play.tree.to_dict()
    play.journal.close()
    tree = play.tokens.tree
    late = tree.prepare(None, context=[1, 2], join=Join.ROOT)
    tree.reject(tree.commit(late, [3], [-0.5], [], finish="stop", detail={}))
    assert len(tree) == 4 and play.tree.to_dict() == whole


async def test_nothing_was_built() -> None:
    engine = PromptEngine(steps(2))
    model = SGLangModel(tokenizer=engine.tokenizer, client=engine)
    play = played(engine)
    outcome = await acted(play, lambda task, model: 1 / 0, model)
    assert outcome.ended is Ended.AGENT and outcome.failure.kind == "ZeroDivisionError"
    assert play.agent is None and play.messages == [] and len(play.tree) == 0
