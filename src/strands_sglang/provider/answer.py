"""Failed calls in the framework's loop: answered without any tool, and, if so chosen, the last thing the agent does.

The framework's own answer to a call of no tool is "Unknown tool", with an error in its log. Hooks on the calling agent
say what is wrong instead, and stop it behind the results where that is the policy. Where the calling agent cannot be
told for certain, the framework's answer is replaced when the conversation is rendered (`chat/failed_call.py`), and the
stop is an error at the next call.

Invariant: only the agent whose call this is, is touched. Its cancel signal tells: no two agents have the same, while
`invocation_state["agent"]` is another's wherever agents share that dict.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from strands.hooks import AfterToolsEvent, BeforeToolCallEvent

from strands_sglang.chat.failed_call import answer_to, ends_here
from strands_sglang.errors import FailedCallError
from strands_sglang.provider.episode import Episode
from strands_sglang.provider.policy import FailedCallPolicy
from strands_sglang.provider.turn import Ready, Recorded

_seen: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()
_FRAMES = 40  # between a model and the loop that calls it; middleware adds some


def calling_agent(invocation_state: Mapping[str, Any] | None, cancel_signal: Any) -> Any:
    """Return the agent that makes this call; None when that is not certain."""
    agent = (invocation_state or {}).get("agent")
    signal = getattr(agent, "cancel_signal", None)
    with _lock:
        if isinstance(signal, threading.Event) and (signal not in _seen or _seen[signal]() is not agent):
            _seen[signal] = weakref.ref(agent)
        known = _seen.get(cancel_signal) if isinstance(cancel_signal, threading.Event) else None
    if known is not None or not isinstance(cancel_signal, threading.Event):
        return known() if known is not None else None
    agent = _on_the_stack(cancel_signal)
    if agent is not None:
        with _lock:
            _seen[cancel_signal] = weakref.ref(agent)
    return agent


def _on_the_stack(cancel_signal: threading.Event) -> Any:
    """Return the agent with this signal whose loop is waiting for this call; None when there is none to be seen.

    Agents of a graph share `invocation_state`, and each writes itself into it; but each is in a loop of its own.
    """
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return None
        agent = frame.f_locals.get("agent")
        if agent is not None and getattr(agent, "cancel_signal", None) is cancel_signal:
            return agent
        frame = frame.f_back  # type: ignore[assignment]
    return None


def settle_failed_calls(episode: Episode, recorded: Recorded, agent: Any, policy: FailedCallPolicy) -> None:
    """Make the agent answer the failed calls of its turn and, if that is the policy, stop behind them.

    Args:
        episode: The turn's.
        recorded: The turn.
        agent: Whose turn it is; None when that is not certain.
        policy: What to do.
    """
    if not recorded.parsed.failures or recorded.cut:
        return
    if agent is None:
        if policy is FailedCallPolicy.END:
            episode.ends_behind.add(recorded.turn.id)
        return
    with _lock:
        known = agent in _hooked
        _hooked.add(agent)
    if not known:
        agent.add_hook(_answer, BeforeToolCallEvent)
        agent.add_hook(_stop, AfterToolsEvent)


def end_behind_failure(episode: Episode, ready: Ready) -> None:
    """End a conversation whose last turn failed, where its agent could not be made to stop by itself.

    Raises:
        FailedCallError: The policy was to end behind the turn before, and this is the step straight behind it.
    """
    parent = ready.plan.parent
    if parent is None or parent.turn not in episode.ends_behind or ready.request.is_side:
        return
    if all("toolResult" in block for block in ready.request.messages[-1]["content"]):
        failed = ready.tree[parent.turn].detail.get("failed_calls", ())
        raise FailedCallError(
            f"turn {parent.turn} has malformed tool calls ({', '.join(sorted(set(failed)))}) and on_failed_call is "
            "'end'; 'tell' shows the model what is wrong with them instead",
            turn=parent.turn,
        )


def _answer(event: BeforeToolCallEvent) -> None:
    answer = answer_to(event.tool_use)
    if answer is not None and not event.cancel_tool:
        event.cancel_tool = answer


def _stop(event: AfterToolsEvent) -> None:
    """Stop where a failed call says so. Not before all results are there: a turn that is interrupted comes again."""
    uses = [block["toolUse"] for block in event.agent.messages[-1]["content"] if "toolUse" in block]
    if len(event.message["content"]) >= len(uses) and any(ends_here(use) for use in uses):
        event.agent.cancel(after_current_tools=True)
