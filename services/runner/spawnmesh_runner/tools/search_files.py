"""The tool `search_files`: find lines that contain a text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field
from spawnmesh_materialize import (
    FileKind,
    MaterializeError,
    MaterializeReason,
    list_directory,
    open_for_reading,
)

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, TextResult, Tool, list_result

MAX_MATCHES = 100
MAX_FILES = 5_000
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_TOTAL_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 32
_SHOWN_LINE_CHARACTERS = 240


class SearchFiles(Arguments):
    pattern: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[^\r\n]*$",
        description="Plain text on one line to look for; case matters, nothing in it is special.",
    )
    path: str = Field(default=".", description="File or directory to search in, relative to the workspace.")


@dataclass(slots=True)
class _Search:
    pattern: str
    matches: list[dict[str, object]] = field(default_factory=list)
    searched_file_count: int = 0
    searched_bytes: int = 0
    skipped_file_count: int = 0
    truncated: bool = False


def search_files(workspace: Path, pattern: str, path: str = ".") -> TextResult:
    """Return the lines that contain `pattern` in a file, or in all files below a directory.

    The lines are sorted by path and number.

    `truncated` is true if a limit ended the search early. Binary files, files over MAX_FILE_BYTES
    and unreadable files are counted as skipped. Links are not followed. Raises MaterializeError if
    the path cannot be searched at all.
    """
    search = _Search(pattern)
    for file_path in _files_below(workspace, path, search):
        if (
            search.searched_file_count + search.skipped_file_count >= MAX_FILES
            or search.searched_bytes >= MAX_TOTAL_BYTES
        ):
            search.truncated = True
        if search.truncated:
            break
        _search_one(workspace, file_path, search)
    facts = {
        "pattern": pattern,
        "searched_file_count": search.searched_file_count,
        "skipped_file_count": search.skipped_file_count,
        "truncated": search.truncated,
    }
    return list_result(facts, search.matches)


def _files_below(workspace: Path, path: str, search: _Search, depth: int = 0) -> Iterator[str]:
    try:
        entries = list_directory(workspace, path)
    except MaterializeError as error:
        if depth == 0 and error.reason is MaterializeReason.NOT_A_DIRECTORY:
            open_for_reading(
                workspace, path
            ).close()  # A file is searched alone. Anything else is refused here.
            yield path
        elif depth == 0:
            raise
        return  # Skip a directory that was removed or may not be read.
    for entry in entries:
        below = entry.name if path == "." else f"{path.rstrip('/')}/{entry.name}"
        if entry.kind is FileKind.FILE:
            yield below
        elif entry.kind is FileKind.DIRECTORY:
            if depth >= MAX_DEPTH:
                search.truncated = True
                return
            yield from _files_below(workspace, below, search, depth + 1)


def _search_one(workspace: Path, path: str, search: _Search) -> None:
    try:
        with open_for_reading(workspace, path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except MaterializeError:
        search.skipped_file_count += 1
        return
    search.searched_bytes += len(data)
    text = _text(data)
    if text is None:
        search.skipped_file_count += 1
        return
    search.searched_file_count += 1
    for number, line in enumerate(text.split("\n"), start=1):
        at = line.find(search.pattern)
        if at < 0:
            continue
        if len(search.matches) >= MAX_MATCHES:
            search.truncated = True
            return
        search.matches.append({"path": path, "line": number, "text": _shown(line, at)})


def _text(data: bytes) -> str | None:
    if len(data) > MAX_FILE_BYTES or b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _shown(line: str, at: int) -> str:
    """Return the part of a line around its first match."""
    start = max(0, at - _SHOWN_LINE_CHARACTERS // 4)
    return line[start : start + _SHOWN_LINE_CHARACTERS].rstrip("\r")


async def _execute(scope: CallScope, arguments: SearchFiles) -> Result:
    return await finish_in_thread(lambda: search_files(scope.workspace, arguments.pattern, arguments.path))


SEARCH_FILES = Tool(
    name="search_files",
    description=(
        f"Finds lines that contain a plain text in the workspace's text files, at most {MAX_MATCHES}, one"
        " line of JSON for each. `truncated` says that there may be more."
    ),
    arguments=SearchFiles,
    execute=_execute,
    idempotent=True,
)
