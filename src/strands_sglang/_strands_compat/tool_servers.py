"""What the SDK does not say about MCP servers: why a call has no answer, and who uses a connection.

`MCPClient` makes a text for the model of every error. `answered` returns the error behind that text. `providers_of`
returns the tool providers of an agent, which nobody but the agent knows.

Tested with strands-agents 1.62, and with mcp 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from strands_sglang._strands_compat import report_unrecognised

if TYPE_CHECKING:
    from strands.tools.mcp import MCPAgentTool, MCPClient

_HANDLER = "_handle_tool_execution_error"
_errors: ContextVar[list[BaseException]] = ContextVar("strands_sglang_mcp_errors")

_NOT_OF_THE_TOOL = frozenset((-32700, -32600, -32601, -32603, -32000, -32001, 408, 32600))
"""JSON-RPC codes that the protocol, the connection and the client use themselves. A tool that does not like its
arguments uses another one, such as -32602."""


def watch_errors(client: MCPClient) -> None:
    """Let `answered` know the errors of a client. Only this object is changed."""
    handle = getattr(client, _HANDLER, None)
    if not callable(handle):
        report_unrecognised("errors of MCP servers", "the model may see an outage of an MCP server as a result")
        return

    def handler(tool_use_id: str, exception: Exception) -> Any:
        if (errors := _errors.get(None)) is not None:
            errors.append(exception)
        return handle(tool_use_id, exception)

    setattr(client, _HANDLER, handler)


async def answered(tool: MCPAgentTool, call: Any, invocation_state: Any) -> tuple[Any, BaseException | None]:
    """Call a tool of a watched client.

    Returns:
        The result, and the error that it was made of; None: the server answered, or the agent cancelled the call.
    """
    errors: list[BaseException] = []
    _errors.set(errors)
    result: Any = None
    async for event in tool.stream(call, invocation_state):
        result = getattr(event, "tool_result", result)
    if not errors or result.get("cancelled"):
        return result, None
    code = getattr(getattr(errors[-1], "error", None), "code", None)
    return result, None if isinstance(code, int) and code not in _NOT_OF_THE_TOOL else errors[-1]


def providers_of(agent: Any) -> Sequence[Any]:
    """Return the tool providers of an agent, such as MCP clients; `agent.cleanup()` releases them."""
    found = getattr(getattr(agent, "tool_registry", None), "_tool_providers", ())
    return tuple(found) if isinstance(found, list) else ()
