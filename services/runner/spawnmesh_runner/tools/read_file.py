"""The tool `read_file`: read a part of a text file, or describe a binary one."""

from pathlib import Path

from pydantic import Field
from spawnmesh_materialize import open_for_reading

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.tools.calling.digest import MAX_HASHED_BYTES, sha256_of
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, TextResult, Tool

MAX_READ_BYTES = 64 * 1024
SHOWN_BINARY_BYTES = 64
_MAX_UTF8_BYTES = 4


class ReadFile(Arguments):
    path: str = Field(description="File, relative to the workspace.")
    offset: int = Field(default=0, ge=0, description="First byte to read.")
    limit: int = Field(
        default=MAX_READ_BYTES, ge=_MAX_UTF8_BYTES, le=MAX_READ_BYTES, description="Most bytes to read."
    )


def read_file(workspace: Path, path: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> Result:
    """Return at most `limit` bytes of text from `offset`, cut between characters.

    `truncated` is true if more follows at `next_offset`. A file that is not UTF-8 text is described
    by its size and its first bytes in hex, and by its SHA-256 if it has at most `MAX_HASHED_BYTES`.
    Raises MaterializeError.
    """
    with open_for_reading(workspace, path) as file:
        size = file.seek(0, 2)
        # A model may ask for any number, even one that no file can seek to.
        file.seek(min(offset, size))
        window = file.read(limit)
        lead = _continuation_length(window) if offset else 0
        text = _text(window[lead:], is_last=offset + len(window) >= size)
        if text is None:
            file.seek(0)
            head = file.read(SHOWN_BINARY_BYTES)
            about = {"path": path, "binary": True, "bytes": size, "first_bytes_hex": head.hex()}
            if size > MAX_HASHED_BYTES:
                return about
            file.seek(0)
            return {**about, "sha256": sha256_of(file)}
    end = offset + lead + len(text.encode("utf-8"))
    facts = {
        "path": path,
        "binary": False,
        "bytes": size,
        "offset": offset + lead,
        "truncated": end < size,
    }
    return TextResult({**facts, "next_offset": end} if end < size else facts, text)


def _continuation_length(window: bytes) -> int:
    """Count the bytes at the start that belong to a character which began before the window."""
    length = 0
    while length < min(len(window), _MAX_UTF8_BYTES - 1) and window[length] & 0xC0 == 0x80:
        length += 1
    return length


def _text(window: bytes, *, is_last: bool) -> str | None:
    """Return the window as text, without a character that its end cuts; None if it is not text."""
    if b"\0" in window:
        return None
    try:
        return window.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_through = error.reason == "unexpected end of data" and not is_last
        return window[: error.start].decode("utf-8") if cut_through and error.start else None


async def _execute(scope: CallScope, arguments: ReadFile) -> Result:
    return await finish_in_thread(
        lambda: read_file(scope.workspace, arguments.path, arguments.offset, arguments.limit)
    )


READ_FILE = Tool(
    name="read_file",
    description=(
        f"Reads UTF-8 text from a file of the workspace, at most {MAX_READ_BYTES} bytes a call. The first"
        " line of the result is JSON about it, and the text follows. `truncated` says that more follows:"
        " continue at `next_offset`. For a binary file it gives size and first bytes as hex, and the SHA-256"
        f" if it has at most {MAX_HASHED_BYTES} bytes."
    ),
    arguments=ReadFile,
    execute=_execute,
    idempotent=True,
)
