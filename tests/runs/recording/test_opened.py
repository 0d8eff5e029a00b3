"""What agents hold is closed with their episode."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

from strands import Agent
from strands.tools import ToolProvider

from strands_sglang import SGLangModel
from strands_sglang.runs import EndReason, Task
from strands_sglang.runs.recording import opened
from support.rollout.agent_kinds import plain
from support.rollout.scripts import PromptEngine, run


@dataclass
class Provider(ToolProvider):
    """A provider that cannot be hashed."""

    consumers: list[Any] = field(default_factory=list)

    async def load_tools(self, **_: Any) -> list[Any]:
        return []

    def add_consumer(self, consumer_id: Any, **_: Any) -> None:
        self.consumers.append(consumer_id)

    def remove_consumer(self, consumer_id: Any, **_: Any) -> None:
        if consumer_id in self.consumers:
            self.consumers.remove(consumer_id)


async def test_any_provider_is_released_once_and_forgotten() -> None:
    providers: list[Provider] = []

    def build(task: Task, model: SGLangModel) -> Agent:
        providers.append(Provider())
        return plain(model, tools=[providers[-1]])

    episodes = await run(build, [Task("go", id=f"t{number}") for number in range(2)], PromptEngine(lambda *_: "Hi."))
    assert [one.end_reason for one in episodes] == [EndReason.ANSWERED] * 2, episodes[0].failure
    assert [one.consumers for one in providers] == [[], []]
    ids = {id(one) for one in providers}
    assert ids <= opened._first_users.keys()
    del episodes, providers[:]
    gc.collect()
    assert not ids & opened._first_users.keys()
