"""Failed calls in the framework's loop: answered without any tool, and, if so chosen, the last thing the agent does.

The framework's own answer to a call of no tool is "Unknown tool", with an error in its log. A hook on the calling agent
says what is wrong instead. Where the calling agent cannot be told for certain (agents that share one
`invocation_state`), the framework's answer is replaced when the conversation is rendered (`chat/failed_call.py`).

Invariant: only the agent whose call this is, is touched. Its cancel signal tells: no two agents have the same.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from strands.hooks import BeforeToolCallEvent

from strands_sglang.chat.failed_call import answer_to
from strands_sglang.errors import FailedCallError
from strands_sglang.provider.policy import FailedCallPolicy
from strands_sglang.provider.turn import Ready, Recorded

_answered: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def calling_agent(invocation_state: Mapping[str, Any] | None, cancel_signal: Any) -> Any:
    """Return the agent that makes this call; None when that is not certain."""
    agent = (invocation_state or {}).get("agent")
    known = agent is not None and cancel_signal is not None and getattr(agent, "cancel_signal", None) is cancel_signal
    return agent if known else None


def settle_failed_calls(recorded: Recorded, agent: Any, policy: FailedCallPolicy) -> None:
    """Make the agent answer the failed calls of its turn and, if that is the policy, stop behind them.

    Args:
        recorded: The turn.
        agent: Whose turn it is; None when that is not certain.
        policy: What to do.
    """
    if not recorded.parsed.failures or recorded.cut or agent is None:
        return
    with _lock:
        known = agent in _answered
        _answered.add(agent)
    if not known:
        agent.add_hook(_answer, BeforeToolCallEvent)
    if policy is FailedCallPolicy.END:
        agent.cancel(after_current_tools=True)


def end_behind_failure(ready: Ready, agent: Any, policy: FailedCallPolicy) -> None:
    """End a conversation whose last turn failed, where its agent could not be made to stop by itself.

    Raises:
        FailedCallError: The policy is to end behind failed calls, and this is the step straight behind one.
    """
    parent = ready.plan.parent
    if policy is not FailedCallPolicy.END or agent is not None or parent is None or ready.request.is_side:
        return
    turn, new = ready.tree[parent.turn], ready.request.messages[parent.count :]
    goes_on = all("toolResult" in block for message in new for block in message["content"])
    if goes_on and (failed := turn.detail.get("failed_calls")):
        raise FailedCallError(
            f"turn {turn.id} has malformed tool calls ({', '.join(sorted(set(failed)))}) and on_failed_call is 'end'; "
            "'tell' shows the model what is wrong with them instead",
            turn=turn.id,
        )


def _answer(event: BeforeToolCallEvent) -> None:
    answer = answer_to(event.tool_use)
    if answer is not None:
        event.cancel_tool = answer
