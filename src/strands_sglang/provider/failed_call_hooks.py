"""Answers malformed tool calls in the SDK's event loop, and stops the agent after them if that is the policy.

The SDK answers a call of an unknown tool with "Unknown tool". Hooks on the calling agent answer with the parse error
instead. If the calling agent is not certain, the SDK's answer is replaced when the conversation is rendered
(`chat/failed_call.py`), and the agent is stopped by an error at its next model call.

Invariant: hooks are added only to the agent that makes the call (`_strands_compat/agents.py` finds it).
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from strands.hooks import AfterToolsEvent, BeforeToolCallEvent

from strands_sglang.chat.failed_call import ends_agent, failed_call_error
from strands_sglang.errors import FailedCallError
from strands_sglang.provider.config import FailedCallPolicy
from strands_sglang.provider.turn import CommittedTurn, PreparedCall

_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def handle_failed_calls(committed: CommittedTurn) -> None:
    """Add hooks to the agent that answer the failed calls of its turn, and stop it after them if that is the policy."""
    if not committed.parsed.failures or committed.truncated:
        return
    request = committed.call.request
    agent = request.agent
    if agent is None:
        if request.settings.on_failed_call is FailedCallPolicy.END:
            request.episode.stop_after.add(committed.turn.id)
        return
    with _lock:
        has_hooks = agent in _hooked
        _hooked.add(agent)
    if not has_hooks:
        agent.add_hook(_answer, BeforeToolCallEvent)
        agent.add_hook(_stop, AfterToolsEvent)


def stop_after_failed_calls(call: PreparedCall) -> None:
    """Stop a conversation whose last turn had failed calls, if its agent could not be stopped by a hook."""
    parent, request = call.plan.lineage.parent, call.request
    if parent is None or parent.turn not in request.episode.stop_after or request.is_side:
        return
    if request.conversation.ends_with_results:
        kinds = call.tree[parent.turn].detail.get("failed_calls", ())
        raise FailedCallError(
            f"turn {parent.turn} has malformed tool calls ({', '.join(sorted(set(kinds)))}) and on_failed_call is "
            "'end'; 'tell' returns the parse errors to the model instead",
            turn=parent.turn,
        )


def _answer(event: BeforeToolCallEvent) -> None:
    answer = failed_call_error(event.tool_use)
    if answer is not None and not event.cancel_tool:
        event.cancel_tool = answer


def _stop(event: AfterToolsEvent) -> None:
    """Stop the agent only if all results are there: an interrupted turn is repeated."""
    uses = [block["toolUse"] for block in event.agent.messages[-1]["content"] if "toolUse" in block]
    if len(event.message["content"]) >= len(uses) and any(ends_agent(use) for use in uses):
        event.agent.cancel(after_current_tools=True)
