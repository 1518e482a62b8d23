"""The server that the benchmarks call: on the SDK's `MCPServer`, one small and one large tool."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")


@server.tool()
def echo(text: str) -> str:
    """The same text again."""
    return text


@server.tool(structured_output=False)
def bulk(size: int) -> str:
    """A text of `size` bytes."""
    return "x" * size


if __name__ == "__main__":
    server.run()
