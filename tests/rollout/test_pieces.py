"""An invocation in pieces, of an agent that others invoke too."""

from __future__ import annotations

from typing import Any

from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent

from rollout.kinds import plain
from rollout.scripts import PromptEngine, run, steps
from strands_sglang import SGLangModel
from strands_sglang.rollout import Ended, Task
from strands_sglang.rollout.pieces import Pieces


async def test_an_agent_that_two_episodes_share_fails_in_one_of_them_alone() -> None:
    """The framework refuses the second invocation; the first goes on as if nothing had been."""
    engine = PromptEngine(steps(12))
    engine.delay = 0.001
    agents: list[Any] = []

    def build(task: Task, model: SGLangModel) -> Any:
        if not agents:
            agents.append(plain(model))
        return agents[0]

    episodes = await run(build, [Task("go", id="one"), Task("go", id="two")], engine)
    ended = sorted(episode.ended for episode in episodes)
    assert ended == [Ended.AGENT, Ended.ANSWERED]
    healthy, other = sorted(episodes, key=lambda episode: episode.ended is Ended.AGENT)
    assert len(healthy.tree) == 13 and healthy.failure is None
    assert other.failure is not None and other.failure.kind == "ConcurrencyException"
    assert "get_callbacks_for" not in vars(agents[0].hooks)


async def test_hooks_hear_of_one_beginning_and_one_end_and_are_left_as_they_were() -> None:
    engine = PromptEngine(steps(20))
    agent = plain(SGLangModel(tokenizer=engine.tokenizer, client=engine))
    heard: list[str] = []
    agent.add_hook(lambda event: heard.append("begins"), BeforeInvocationEvent)
    agent.add_hook(lambda event: heard.append("ends"), AfterInvocationEvent)
    result = await Pieces(agent, 20).invoke("go")
    assert result.stop_reason == "limit_turns" and len(engine.calls) == 20
    assert heard == ["begins", "ends"]
    assert "get_callbacks_for" not in vars(agent.hooks)
