"""An export of an imported file has its bytes, in every dialect."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_transcript.domain.dialects.recognition import Dialect
from spawnmesh_transcript.domain.entries import NewEntry, StoredEntry
from spawnmesh_transcript.operations.session_files.batch_reader import read_lines
from spawnmesh_transcript.operations.session_files.file_writer import Exported, write_lines
from spawnmesh_transcript.operations.session_files.session_file import SessionFile
from spawnmesh_transcript.store.imports import ImportProgress

from tests.support.transcript.dialects import BASE64, FILES, js

FILE = SessionFile(new_id(IdKind.SESSION), "i", mask_secrets=False)
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def imported(data: bytes, batch_lines: int = 1000) -> tuple[ImportProgress, list[NewEntry]]:
    """Read a file in batches of lines, as an import does."""
    lines = data.removesuffix(b"\n").split(b"\n")
    progress, entries = ImportProgress(), []
    for start in range(0, len(lines), batch_lines):
        is_last = start + batch_lines >= len(lines)
        is_terminated = data.endswith(b"\n") or not is_last
        batch = lines[start : start + batch_lines]
        progress, read = read_lines(FILE, batch, progress, is_terminated=is_terminated)
        entries += [entry for _, entry in read]
    assert not progress.malformed
    return progress, entries


def exported(entries: list[NewEntry]) -> bytes:
    stored = [
        StoredEntry(entry.entry_id, "", seq, 0, "", 0, "", "", TIME, b"", entry.body)
        for seq, entry in enumerate(entries, start=1)
    ]
    bodies = [pb.EntryBody.FromString(entry.body) for entry in stored]
    return b"".join(write_lines(stored, bodies, {}, Exported())[0])


def kinds_of(entries: list[NewEntry]) -> list[tuple[str, str]]:
    """Return the ids and types of all entries but those of empty lines."""
    bodies = [(entry.entry_id, pb.EntryBody.FromString(entry.body)) for entry in entries]
    kinds = [(entry_id, body.WhichOneof("kind") or "", body.opaque.type) for entry_id, body in bodies]
    return [(entry_id, kind) for entry_id, kind, of in kinds if of != "blank"]


SPELLINGS: list[Any] = [
    js,
    json.dumps,
    lambda value: js(value).replace("/", "\\/"),
    lambda value: json.dumps(value, indent=1).replace("\n", "\r"),
]


@st.composite
def unusual_files(draw: st.DrawFn) -> tuple[str, bytes, int]:
    """Draw a file of any dialect, with its lines in any spelling and empty lines between them."""
    name = draw(st.sampled_from(sorted(FILES)))
    text = draw(st.text(max_size=20))
    lines = [draw(st.sampled_from(SPELLINGS))(_with_text(line, text)) for line in FILES[name]]
    ends = [draw(st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n\r\n"])) for _ in lines[:-1]]
    ends.append(draw(st.sampled_from(["", "\r", "\n", "\n\n", "\n  "])))
    bom = draw(st.sampled_from(["", "\ufeff"]))
    data = (bom + "".join(line + end for line, end in zip(lines, ends, strict=True))).encode("utf-8")
    return name, data, draw(st.integers(1, 9))


def _with_text(value: Any, text: str) -> Any:
    """Return the line with its old task replaced by any text."""
    return json.loads(json.dumps(value).replace("old task \\u00e9", json.dumps(text)[1:-1]))


@given(unusual_files())
def test_an_export_has_the_bytes_of_the_import(case: tuple[str, bytes, int]) -> None:
    name, data, batch_lines = case
    progress, entries = imported(data, batch_lines)
    assert exported(entries) == data
    assert progress.dialect == name.removesuffix("_BARE")
    assert len({entry.entry_id for entry in entries}) == len(entries)
    whole, together = imported(data)
    assert whole == progress
    assert kinds_of(together) == kinds_of(entries)


@pytest.mark.parametrize("name", sorted(FILES))
def test_texts_and_images_are_stored_once_if_they_are_spelled_as_an_export_spells_them(name: str) -> None:
    data = "".join(js(line) + "\n" for line in FILES[name]).encode()
    progress, entries = imported(data)
    assert Dialect(progress.dialect)
    lines = "".join(pb.EntryBody.FromString(entry.body).source.line for entry in entries)
    assert "old answer" not in lines
    assert BASE64 not in lines
