"""Names of MCP tools, and the ends of a tool call that has no result."""

MCP_PREFIX = "mcp__"
"""The names of all MCP servers' tools begin with it, and no name of a built-in tool does."""


def mcp_prefix(server: str) -> str:
    """Return the prefix of a server's tool names.

    A server's name has no `__`, so no two servers give a tool the same name.
    """
    return f"{MCP_PREFIX}{server}__"


class RunParked(Exception):
    """This runner does not hold the run any more, because it waits or has ended. The text says why.

    It waits for the decision on `approval_id`, or until the budget of `budget_session_id` has room.
    If it failed with that, there is an `error_reason`.
    """

    def __init__(
        self, why: str, *, approval_id: str = "", budget_session_id: str = "", error_reason: str = ""
    ) -> None:
        super().__init__(why)
        self.approval_id = approval_id
        self.budget_session_id = budget_session_id
        self.error_reason = error_reason


class TurnInterrupted(Exception):
    """The turn is over: the run must end, or an urgent message waits in its inbox."""


class ToolRefused(Exception):
    """A tool call cannot be done.

    The model reads reason and message, so neither names a path of the host.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
