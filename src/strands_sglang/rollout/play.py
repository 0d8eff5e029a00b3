"""Playing one episode: the agent is built and driven in a scope of its own. `Play`.

Invariant: the episode scope and the watch over its tools are set in the task that `act` runs in, and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strands_sglang.errors import ConfigurationError
from strands_sglang.limits import ToolLimiter
from strands_sglang.model import SGLangModel
from strands_sglang.provider.episode import Episode as TokenEpisode
from strands_sglang.provider.names import name_nodes
from strands_sglang.rollout.bounds import Limits
from strands_sglang.rollout.drive import Outcome, drive, outcome_of
from strands_sglang.rollout.history import quick_to_copy
from strands_sglang.rollout.journal import Journal, within
from strands_sglang.rollout.quota import Quota
from strands_sglang.rollout.task import Task
from strands_sglang.rollout.tool_watch import ToolWatch, watch_of, watch_tools
from strands_sglang.tokens import TokenTree


@dataclass(slots=True)
class Play:
    """An episode while it runs."""

    id: str
    """Id of the episode."""
    task: Task
    """What is asked."""
    journal: Journal
    """Who answers its calls."""
    tokens: TokenEpisode = field(init=False)
    """Its turns."""
    agent: Any = None
    """What `build` returned; None: nothing yet."""
    agents: list[Any] = field(default_factory=list)
    """Who made turns of it, but for agents inside of tools, in the order in which they began."""

    def __post_init__(self) -> None:
        self.tokens = TokenEpisode(self.id, self.journal)
        self.journal.on_agent = self._heard

    def _heard(self, agent: Any) -> None:
        """Hear of an agent that made a turn."""
        watch_tools(agent)
        if not within.get() and all(agent is not known for known in self.agents):
            self.agents.append(agent)

    async def act(
        self, build: Callable[..., Any], model: SGLangModel, limits: Limits, rerun_tools: frozenset[str]
    ) -> Outcome:
        """Build the agent and drive it; in a task of its own, or what is set here is seen by others."""
        await self.journal.breathe()
        watch_of.set(ToolWatch(self.journal, limits.seconds_per_tool, rerun_tools))
        with model.episode(self.tokens):
            try:
                agent = build(self.task, model)
                self.agent = agent = _checked(await agent if inspect.isawaitable(agent) else agent)
                name_nodes(agent)
                quick_to_copy(agent)
                if not (hasattr(agent, "invoke_async") and hasattr(agent, "messages")):
                    self.journal.quota = Quota(limits.turns, limits.tool_calls)
                elif limits.tool_calls is not None:
                    agent.hooks.add_hook(ToolLimiter(max_tool_calls=limits.tool_calls))
            except (Exception, SystemExit) as error:
                return outcome_of(error, limits, self.tokens)
            return await drive(agent, self.task, limits, self.tokens)

    @property
    def tree(self) -> TokenTree:
        """Its turns, without any that came too late to be recorded: one of a thread that was left behind, say."""
        tree, recorded = self.tokens.tree, self.journal.turns
        if len(tree) <= recorded:
            return tree
        whole = tree.to_dict()
        return TokenTree.from_dict({**whole, "turns": whole["turns"][:recorded]})

    @property
    def last_words(self) -> str:
        """What the agent said last, as far as it came; "" when that was nothing."""
        for message in reversed(self.messages):
            if isinstance(message, dict) and message.get("role") == "assistant":
                texts = (block.get("text") for block in message.get("content") or () if isinstance(block, dict))
                return "\n".join(text for text in texts if isinstance(text, str)).strip()
        return ""

    @property
    def messages(self) -> list[Any]:
        """The agent's conversation; of a graph, a swarm or a function, those of its agents one after the other."""
        if hasattr(self.agent, "messages"):
            return list(self.agent.messages)
        return [message for agent in self.agents for message in getattr(agent, "messages", ())]


def _checked(built: Any) -> Any:
    """Return what `build` made.

    Raises:
        ConfigurationError: It is nothing that an episode could be done with.
    """
    if built is None:
        raise ConfigurationError("build(task, model) returned None, not an agent: does it end with `return agent`?")
    if isinstance(built, type) or not (hasattr(built, "invoke_async") or callable(built)):
        raise ConfigurationError(
            f"build(task, model) returned {built!r:.100}, which is no agent: it returns a Strands agent, a graph or a "
            "swarm, or a function without arguments"
        )
    return built
