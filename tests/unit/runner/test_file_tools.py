"""The file tools: their results, their limits, and the paths that they refuse."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2
from spawnmesh_materialize import MaterializeError, MaterializeReason
from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.sandbox.disk import MAX_DEPTH
from spawnmesh_runner.tools.calling.call import ToolOutcome, execute_call
from spawnmesh_runner.tools.calling.digest import MAX_HASHED_BYTES
from spawnmesh_runner.tools.calling.registry import BUILT_IN
from spawnmesh_runner.tools.calling.tool import CallScope, TextResult
from spawnmesh_runner.tools.list_files import MAX_ENTRIES, list_files
from spawnmesh_runner.tools.read_file import MAX_READ_BYTES, read_file
from spawnmesh_runner.tools.search_files import MAX_FILE_BYTES, MAX_MATCHES, search_files
from spawnmesh_runner.tools.write_file import MAX_WRITE_BYTES, write_file

ROOM_BYTES = 8 * MAX_WRITE_BYTES
ESCAPES = ["../outside.txt", "/etc/passwd", "sub/../../outside.txt", "link.txt", "linked/outside.txt", "a\0b"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a workspace beside a secret, with symbolic links to the secret inside."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "outside.txt").write_text("SECRET")
    (tmp_path / "outside.txt").write_text("SECRET")
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "linked").symlink_to(tmp_path / "outside")
    (root / "sub").mkdir()
    (root / "sub" / "poem.txt").write_text("über\nalles\n")
    return root


def items(result: TextResult) -> list[object]:
    """Return the objects of a result that has one in each line."""
    return [json.loads(line) for line in result.text.split("\n") if line]


def text_of(workspace: Path, path: str, offset: int = 0, limit: int = MAX_READ_BYTES) -> TextResult:
    """Read a part of a text file."""
    result = read_file(workspace, path, offset, limit)
    assert isinstance(result, TextResult)
    return result


async def call(workspace: Path, tool_name: str, **arguments: object) -> ToolOutcome:
    block = message_pb2.ToolCall(
        tool_call_id="c1", name=tool_name, block_json=json.dumps({"type": "toolCall", "arguments": arguments})
    )
    scope = CallScope(
        workspace=workspace,
        max_workspace_bytes=ROOM_BYTES,
        peers=cast("Peers", None),  # file tools call no peer
        session_id="s",
        epoch=1,
        had_earlier_runner=False,
        was_begun=False,
        answer_entry_id="e",
        request_id="r",
        ask=cast("Any", None),  # and no person
        cut_turn=cast("Any", None),
        budget_session_ids=(),
        await_budget=cast("Any", None),
    )
    return await execute_call(BUILT_IN[tool_name], block, scope)


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("tool_name", ["list_files", "read_file", "search_files", "write_file"])
async def test_no_file_tool_leaves_the_workspace(workspace: Path, tool_name: str, path: str) -> None:
    more = {"search_files": {"pattern": "SECRET"}, "write_file": {"content": "overwritten"}}.get(
        tool_name, {}
    )
    outcome = await call(workspace, tool_name, path=path, **more)
    assert outcome.error_reason in {"INVALID_PATH", "UNSAFE_PATH", "NOT_A_DIRECTORY"}
    assert str(workspace.parent) not in outcome.text
    assert "SECRET" not in outcome.text
    assert (workspace.parent / "outside.txt").read_text() == "SECRET"
    assert (workspace.parent / "outside" / "outside.txt").read_text() == "SECRET"


def test_search_does_not_follow_links(workspace: Path) -> None:
    os.link(workspace.parent / "outside.txt", workspace / "hard.txt")
    assert items(search_files(workspace, "SECRET")) == []


async def test_a_hard_link_is_not_read(workspace: Path) -> None:
    os.link(workspace.parent / "outside.txt", workspace / "hard.txt")
    outcome = await call(workspace, "read_file", path="hard.txt")
    assert (outcome.error_reason, "SECRET" in outcome.whole_text) == ("UNSAFE_PATH", False)


def test_a_hard_link_is_not_written_through(workspace: Path) -> None:
    os.link(workspace.parent / "outside.txt", workspace / "hard.txt")
    with pytest.raises(MaterializeError) as refused:
        write_file(workspace, ROOM_BYTES, "hard.txt", "overwritten")
    assert refused.value.reason is MaterializeReason.UNSAFE_PATH
    assert (workspace.parent / "outside.txt").read_text() == "SECRET"


def test_list_gives_kind_size_and_hash(workspace: Path) -> None:
    listed = list_files(workspace, ".")
    assert listed.facts == {"path": ".", "truncated": False}
    assert items(listed) == [
        {"name": "link.txt", "kind": "symlink"},
        {"name": "linked", "kind": "symlink"},
        {"name": "sub", "kind": "directory"},
    ]
    data = "über\nalles\n".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    assert items(list_files(workspace, "sub")) == [
        {"name": "poem.txt", "kind": "file", "bytes": len(data), "sha256": sha256}
    ]


def test_list_reports_truncation(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 1):
        (tmp_path / f"{number:04}").mkdir()
    listed = list_files(tmp_path, ".")
    assert listed.facts["truncated"] is True
    assert len(items(listed)) == MAX_ENTRIES


def test_read_returns_a_small_file_completely(workspace: Path) -> None:
    facts = {"path": "sub/poem.txt", "binary": False, "bytes": 12, "offset": 0, "truncated": False}
    assert read_file(workspace, "sub/poem.txt") == TextResult(facts, "über\nalles\n")


def test_read_is_bounded_and_returns_the_next_offset(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("x" * (MAX_READ_BYTES + 10))
    first = text_of(tmp_path, "big.txt")
    assert (first.facts["truncated"], first.facts["next_offset"]) == (True, MAX_READ_BYTES)
    rest = text_of(tmp_path, "big.txt", offset=MAX_READ_BYTES)
    assert (rest.facts["truncated"], rest.text) == (False, "x" * 10)


@given(text=st.text(max_size=60).filter(lambda text: "\0" not in text), limit=st.integers(4, 20))
def test_consecutive_reads_give_the_complete_file(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int
) -> None:
    root = tmp_path_factory.mktemp("pieces")
    (root / "f").write_bytes(text.encode())
    pieces, offset = [], 0
    while True:
        piece = text_of(root, "f", offset, limit)
        pieces.append(piece.text)
        if not piece.facts["truncated"]:
            break
        next_offset = cast("int", piece.facts["next_offset"])
        assert next_offset > offset
        offset = next_offset
    assert "".join(pieces) == text


def test_an_offset_inside_a_character_starts_at_the_next(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("€uro")
    piece = text_of(tmp_path, "f", offset=1)
    assert (piece.facts["offset"], piece.text) == (3, "uro")


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\0" + b"\xff" * 100, b"caf\xe9", b"cut \xe2\x82", b"\xe2"])
def test_a_binary_file_is_described_and_not_decoded(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    assert read_file(tmp_path, "f") == {
        "path": "f",
        "binary": True,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "first_bytes_hex": data[:64].hex(),
    }


def test_a_large_binary_file_is_described_without_reading_it_completely(tmp_path: Path) -> None:
    size = MAX_HASHED_BYTES + 1
    with (tmp_path / "f").open("wb") as file:
        file.truncate(size)
    assert read_file(tmp_path, "f") == {
        "path": "f",
        "binary": True,
        "bytes": size,
        "first_bytes_hex": "00" * 64,
    }


def test_search_returns_path_and_line(workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\ntwo .* three\n")
    (workspace / "b.bin").write_bytes(b"\0two .*")
    found = search_files(workspace, ".*")
    assert items(found) == [{"path": "a.txt", "line": 2, "text": "two .* three"}]
    facts = {"pattern": ".*", "searched_file_count": 2, "skipped_file_count": 1, "truncated": False}
    assert found.facts == facts
    assert items(search_files(workspace, "alles", "sub/poem.txt")) == [
        {"path": "sub/poem.txt", "line": 2, "text": "alles"}
    ]


def test_search_stops_at_its_limit_and_reports_it(tmp_path: Path) -> None:
    (tmp_path / "exact.txt").write_text("x\n" * MAX_MATCHES)
    assert search_files(tmp_path, "x").facts["truncated"] is False
    (tmp_path / "more.txt").write_text("x\n")
    found = search_files(tmp_path, "x")
    assert found.facts["truncated"] is True
    assert len(items(found)) == MAX_MATCHES


def test_search_counts_a_file_that_is_too_large_as_skipped(tmp_path: Path) -> None:
    (tmp_path / "huge.txt").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    found = search_files(tmp_path, "x")
    assert (items(found), found.facts["skipped_file_count"]) == ([], 1)


async def test_a_pattern_with_a_line_break_is_refused(workspace: Path) -> None:
    assert (await call(workspace, "search_files", pattern="a\nb")).error_reason == "INVALID_ARGUMENTS"


async def test_write_creates_directories_and_replaces_files(workspace: Path) -> None:
    assert (await call(workspace, "write_file", path="new/dir/f.txt", content="long text")).error_reason == ""
    outcome = await call(workspace, "write_file", path="new/dir/f.txt", content="ä")
    assert json.loads(outcome.text) == {
        "path": "new/dir/f.txt",
        "bytes": 2,
        "sha256": hashlib.sha256("ä".encode()).hexdigest(),
    }
    written = workspace / "new" / "dir" / "f.txt"
    assert (written.read_text(), written.stat().st_mode & 0o777) == ("ä", 0o600)


async def test_write_is_bounded(workspace: Path) -> None:
    outcome = await call(workspace, "write_file", path="f", content="x" * (MAX_WRITE_BYTES + 1))
    assert outcome.error_reason == "TOO_LARGE"
    assert not (workspace / "f").exists()


async def test_files_are_written_until_the_workspace_is_full(workspace: Path) -> None:
    content = "x" * MAX_WRITE_BYTES
    results = [await call(workspace, "write_file", path=f"{n}", content=content) for n in range(9)]
    reasons = [result.error_reason for result in results]
    assert reasons.index("WORKSPACE_FULL") == 7, "the workspace has room for 8, and not for its small files"
    assert set(reasons[7:]) == {"WORKSPACE_FULL"}
    assert f"all files together may have {ROOM_BYTES} bytes" in results[7].text
    assert sum(file.stat().st_size for file in workspace.rglob("*") if file.is_file()) < ROOM_BYTES
    assert not (workspace / "7").exists()

    for path in ("0", "1"):
        assert (await call(workspace, "write_file", path=path, content="")).error_reason == ""
    assert (await call(workspace, "write_file", path="7", content=content)).error_reason == ""


async def test_nothing_is_written_into_a_workspace_that_cannot_be_measured(workspace: Path) -> None:
    deep = "d/" * (MAX_DEPTH + 1)
    (workspace / deep).mkdir(parents=True)
    outcome = await call(workspace, "write_file", path="f", content="x")
    assert outcome.error_reason == "WORKSPACE_FULL"
    assert f"directories in more than {MAX_DEPTH} levels" in outcome.text


@pytest.mark.parametrize(
    "arguments",
    [{"path": 3}, {"path": "f", "offset": -1}, {"path": "f", "limit": MAX_READ_BYTES + 1}, {"file": "f"}, {}],
)
async def test_invalid_arguments_are_named_without_their_values(
    workspace: Path, arguments: dict[str, object]
) -> None:
    outcome = await call(workspace, "read_file", **arguments, content="do not echo")
    assert outcome.error_reason == "INVALID_ARGUMENTS"
    assert "do not echo" not in outcome.text


async def test_a_read_beyond_the_end_is_empty(workspace: Path) -> None:
    outcome = await call(workspace, "read_file", path="sub/poem.txt", offset=2**70)
    assert outcome.error_reason == ""
    [facts] = outcome.blocks
    assert json.loads(facts)["bytes"] == 12
