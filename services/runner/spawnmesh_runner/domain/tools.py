"""Names of MCP tools, and the refusal of a tool call."""

MCP_PREFIX = "mcp__"
"""The names of all MCP servers' tools begin with it, and no name of a built-in tool does."""


def mcp_prefix(server: str) -> str:
    """Return the prefix of a server's tool names.

    A server's name has no `__`, so no two servers give a tool the same name.
    """
    return f"{MCP_PREFIX}{server}__"


class ToolRefused(Exception):
    """A tool call cannot be done.

    The model reads reason and message, so neither names a path of the host.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
