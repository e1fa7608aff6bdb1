"""The tool `list_files`: list one directory of the workspace."""

from pathlib import Path

from pydantic import Field
from spawnmesh_materialize import DirectoryEntry, FileKind, MaterializeError, list_directory, open_for_reading

from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.tools.calling.digest import MAX_HASHED_BYTES, sha256_of
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, TextResult, Tool, list_result

MAX_ENTRIES = 500


class ListFiles(Arguments):
    path: str = Field(default=".", description="Directory, relative to the workspace.")


def list_files(workspace: Path, path: str) -> TextResult:
    """Return name, kind, size and SHA-256 of a directory's entries, by name, one in each line.

    `truncated` is true if it has more than MAX_ENTRIES. Files are listed without a hash once
    MAX_HASHED_BYTES were hashed. Raises MaterializeError.
    """
    entries = list_directory(workspace, path)
    hashable_bytes = MAX_HASHED_BYTES
    listed: list[dict[str, object]] = []
    for entry in entries[:MAX_ENTRIES]:
        item: dict[str, object] = {"name": entry.name, "kind": entry.kind.value}
        if entry.kind is FileKind.FILE:
            item["bytes"] = entry.size_bytes
            if entry.size_bytes <= hashable_bytes:
                item["sha256"] = _sha256(workspace, path, entry)
                hashable_bytes -= entry.size_bytes
        listed.append(item)
    return list_result({"path": path, "truncated": len(entries) > MAX_ENTRIES}, listed)


def _sha256(workspace: Path, path: str, entry: DirectoryEntry) -> str | None:
    try:
        with open_for_reading(workspace, f"{path}/{entry.name}") as file:
            return sha256_of(file)
    except MaterializeError:
        return None  # It was removed or may not be read, but it was listed.


async def _execute(scope: CallScope, arguments: ListFiles) -> Result:
    return await finish_in_thread(lambda: list_files(scope.workspace, arguments.path))


LIST_FILES = Tool(
    name="list_files",
    description=(
        "Lists one directory of the workspace, one line of JSON for each entry: name, kind, and for files the"
        " size in bytes and the SHA-256."
    ),
    arguments=ListFiles,
    execute=_execute,
    idempotent=True,
)
