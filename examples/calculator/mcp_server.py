"""The calculator of this example as an MCP server that speaks stdio; docs/guides/mcp.md uses it. Needs mcp 2."""

from mcp.server import MCPServer

server = MCPServer("calculator", log_level="WARNING")


@server.tool()
def calculator(expression: str) -> str:
    """Work out one operation on two whole numbers.

    Args:
        expression: Such as `615 * 17`.
    """
    left, operator, right = expression.split()
    return str({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator](int(left), int(right)))


if __name__ == "__main__":
    server.run("stdio")
