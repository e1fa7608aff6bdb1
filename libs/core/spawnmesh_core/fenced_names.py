"""File names that others chose, as a list that a model can read and no name can break out of."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# The line break of the fence and the closing count; 20 is the most digits that the count can have.
_MORE_MAX_BYTES = len("\n\n...and  more") + 20


@dataclass(frozen=True, slots=True)
class NotedFile:
    """A file of a list; `size_bytes` is the decoded size."""

    name: str
    size_bytes: int


def fenced_names(files: Sequence[NotedFile], budget_bytes: int, *, left_out: int = 0) -> str:
    """Return the names in their order, one a line, and how many did not fit.

    The text has at most `budget_bytes` bytes of UTF-8. A fence that no name can close surrounds the
    names; unprintable characters are escaped. `left_out` more files are not in the list.
    """
    lines: list[str] = []
    used_bytes = 0
    fence = "```"
    for file in files:
        line = f"- {_printable(file.name)} ({file.size_bytes} bytes)"
        wider = max(fence, _fence_around(line))
        size = used_bytes + len(line.encode("utf-8")) + 1
        if size + 2 * len(wider) + _MORE_MAX_BYTES > budget_bytes:
            break
        lines.append(line)
        used_bytes, fence = size, wider
    left_out += len(files) - len(lines)
    more = f"\n...and {left_out} more" if left_out else ""
    return "\n".join([fence, *lines, fence]) + more


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in name)


def _fence_around(line: str) -> str:
    """Return more backticks than any run in `line` has: a shorter run cannot close the block."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", line)), default=0))
