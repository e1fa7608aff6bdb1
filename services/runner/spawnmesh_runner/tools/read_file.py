"""`read_file`: a piece of a text file, or what can be said of a binary one."""

from pathlib import Path

from pydantic import Field
from spawnmesh_materialize import open_for_reading

from spawnmesh_runner.in_thread import finish_in_thread
from spawnmesh_runner.tools.digest import MAX_HASHED_BYTES, sha256_of
from spawnmesh_runner.tools.tool import Arguments, Result, Scope, Tool

MAX_READ_BYTES = 64 * 1024
SHOWN_BINARY_BYTES = 64
_MAX_UTF8_BYTES = 4


class ReadFile(Arguments):
    path: str = Field(description="File, relative to the workspace.")
    offset: int = Field(default=0, ge=0, description="First byte to read.")
    limit: int = Field(default=MAX_READ_BYTES, ge=_MAX_UTF8_BYTES, le=MAX_READ_BYTES, description="Most bytes to read.")


def read_file(workspace: Path, path: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> Result:
    """At most `limit` bytes of text from `offset`, cut between characters; `truncated` says whether more follows at `next_offset`.

    What is not UTF-8 text is not decoded: size and first bytes as hex come instead, and the SHA-256 of a file of at most `MAX_HASHED_BYTES`.
    Raises MaterializeError.
    """
    with open_for_reading(workspace, path) as file:
        size = file.seek(0, 2)
        file.seek(min(offset, size))  # A model may ask for any number, and no file has room for some.
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
    answer = {
        "path": path,
        "binary": False,
        "bytes": size,
        "offset": offset + lead,
        "text": text,
        "truncated": end < size,
    }
    return {**answer, "next_offset": end} if end < size else answer


def _continuation_length(window: bytes) -> int:
    """Bytes at the start that end a character which began before the window."""
    length = 0
    while length < min(len(window), _MAX_UTF8_BYTES - 1) and window[length] & 0xC0 == 0x80:
        length += 1
    return length


def _text(window: bytes, *, is_last: bool) -> str | None:
    """The window as text, without a character that its end cuts through; None where it is no text."""
    if b"\0" in window:
        return None
    try:
        return window.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_through = error.reason == "unexpected end of data" and not is_last
        return window[: error.start].decode("utf-8") if cut_through and error.start else None


async def _run(scope: Scope, arguments: ReadFile) -> Result:
    return await finish_in_thread(lambda: read_file(scope.workspace, arguments.path, arguments.offset, arguments.limit))


READ_FILE = Tool(
    name="read_file",
    description=(
        f"Reads UTF-8 text from a file of the workspace, at most {MAX_READ_BYTES} bytes a call. `truncated` says that more follows: go on at"
        f" `next_offset`. Of a binary file it gives size and first bytes as hex, and the SHA-256 if it has at most {MAX_HASHED_BYTES} bytes."
    ),
    arguments=ReadFile,
    run=_run,
    idempotent=True,
)
