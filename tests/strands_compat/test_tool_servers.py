"""Canaries: what the SDK does with errors of MCP servers, and where an agent keeps its tool providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from strands import Agent
from strands.middleware import ToolResultEvent
from strands.tools import ToolProvider
from strands.tools.mcp import MCPClient
from strands.types.exceptions import MCPClientInitializationError

from strands_sglang import _strands_compat
from strands_sglang._strands_compat.tool_servers import answered, providers_of, watch_errors


class JsonRpcError(Exception):
    """As the error of the mcp package, in all its versions."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.error = type("ErrorData", (), {"code": code})()


class FailingTool:
    """Does what the SDK's tool of a server does when a call raises an error."""

    def __init__(self, client: MCPClient, error: Exception) -> None:
        self.client, self.error = client, error

    async def stream(self, tool_use: Any, invocation_state: Any) -> AsyncIterator[Any]:
        yield ToolResultEvent(self.client._handle_tool_execution_error(tool_use["toolUseId"], self.error))


async def error_of(error: Exception) -> BaseException | None:
    client = MCPClient(url="http://127.0.0.1:9/mcp")
    watch_errors(client)
    call = {"toolUseId": "1", "name": "x", "input": {}}
    result, found = await answered(FailingTool(client, error), call, {})  # type: ignore[arg-type]
    assert result["status"] == "error" and str(error) in str(result)
    return found


@pytest.mark.parametrize("code", [-32000, -32001, -32600, -32601, -32603, -32700, 408, 32600])
async def test_canary_error_of_protocol_or_connection_is_no_answer(code: int) -> None:
    assert isinstance(await error_of(JsonRpcError(code)), JsonRpcError)


async def test_every_other_error_is_no_answer() -> None:
    for error in (RuntimeError("Connection to the MCP server was closed"), KeyError("image/svg"), TimeoutError("late")):
        assert await error_of(error) is error


@pytest.mark.parametrize("code", [-32602, -32042, -1, 1000])
async def test_error_of_the_tool_is_an_answer(code: int) -> None:
    assert await error_of(JsonRpcError(code)) is None


async def test_call_on_a_client_that_is_not_connected_raises() -> None:
    with pytest.raises(MCPClientInitializationError):
        await MCPClient(url="http://127.0.0.1:9/mcp").call_tool_async("1", "x", {})


def test_client_of_another_sdk_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    _strands_compat._reported.discard("errors of MCP servers")
    watch_errors(object())  # type: ignore[arg-type]
    assert "the model may see an outage of an MCP server as a result" in caplog.text


class Provider(ToolProvider):
    """A provider that counts its agents."""

    def __init__(self) -> None:
        self.consumers: set[Any] = set()

    async def load_tools(self, **_: Any) -> list[Any]:
        return []

    def add_consumer(self, consumer_id: Any, **_: Any) -> None:
        self.consumers.add(consumer_id)

    def remove_consumer(self, consumer_id: Any, **_: Any) -> None:
        self.consumers.discard(consumer_id)


def test_canary_providers_of_an_agent() -> None:
    provider = Provider()
    agent = Agent(tools=[provider], callback_handler=None)
    assert providers_of(agent) == (provider,) and len(provider.consumers) == 1
    agent.cleanup()
    assert not provider.consumers
    assert providers_of(object()) == providers_of(None) == ()
