"""Close the pipes of a process that has ended.

Upstream: asyncio keeps the transport of a process open until each pipe has reached its end. A
process that the child started holds the pipe, and `asyncio.subprocess.Process` has no public method
to close it: https://github.com/python/cpython/issues/88050

Why here: an MCP server may leave such a process behind. The runner would keep a pipe for each.

Remove it when `Process` can close its pipes.
"""

from asyncio.subprocess import Process


def close_pipes(process: Process) -> None:
    """Close all pipes of the process. What was not read is lost."""
    process._transport.close()  # type: ignore[attr-defined]
