"""Names of MCP tools, and the ends of a tool call that has no result."""

MCP_PREFIX = "mcp__"
"""The names of all MCP servers' tools begin with it, and no name of a built-in tool does."""


def mcp_prefix(server: str) -> str:
    """Return the prefix of a server's tool names.

    A server's name has no `__`, so no two servers give a tool the same name.
    """
    return f"{MCP_PREFIX}{server}__"


class RunParked(Exception):
    """The run waits for a person, and this runner does not hold it any more.

    Without an approval, the run was interrupted before, and has ended.
    """

    def __init__(self, approval_id: str) -> None:
        super().__init__("the run waits for a person" if approval_id else "the run was interrupted")
        self.approval_id = approval_id


class TurnInterrupted(Exception):
    """The turn is over: the run must end, or an urgent message waits in its inbox."""


class ToolRefused(Exception):
    """A tool call cannot be done.

    The model reads reason and message, so neither names a path of the host.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
