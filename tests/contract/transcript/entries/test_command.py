"""`spawnmesh transcript` against the running service."""

import json
from pathlib import Path

from tests.support.transcript import dialects
from tests.support.transcript.bodies import user
from tests.support.transcript.commands import Command
from tests.support.transcript.files import HEADER, file_of, message, values
from tests.support.transcript.fixtures import Session


async def test_a_session_file_is_imported_and_exported(
    session: Session, tmp_path: Path, command: Command
) -> None:
    file, copy = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(file_of(HEADER, message(1, content="a needle"), message(2, "assistant", "found it")))
    status, out, err = await command(session, "import", str(file), "--json")
    imported = json.loads(out)
    assert (status, imported["state"]) == (0, "IMPORT_STATE_COMPLETE")
    session_id = imported["session_id"]
    again = f"spawnmesh transcript import {file} --session-id {session_id}"
    assert err == f"importing as {session_id}; if this is interrupted, resume with: {again}\n"
    status, out, err = await command(session, "export", session_id)
    assert (status, err) == (0, "")
    assert values(out.encode()) == values(file.read_bytes())
    await command(session, "export", session_id, "--out", str(copy))
    assert copy.read_text() == out
    status, out, _ = await command(session, "show", session_id)
    assert status == 0
    assert "a needle" in out
    status, out, _ = await command(session, "search", session_id, "needle", "--json")
    assert (status, json.loads(out)["seq"]) == (0, "2")
    status, out, _ = await command(session, "search", session_id, "^f", "--regex")
    assert "found it" in out
    assert (await command(session, "search", session_id, "haystack"))[0] == 1


async def test_a_file_of_a_coding_agent_is_imported_and_its_sub_agents_are_searched_on_request(
    session: Session, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(dialects.file_of(dialects.CLAUDE))
    status, out, _ = await command(session, "import", str(file))
    assert (status, out.split()[-1]) == (0, "CLAUDE_CODE")
    session_id = out.split()[0]
    assert (await command(session, "search", session_id, "side"))[0] == 1
    status, out, _ = await command(session, "search", session_id, "side", "--superseded")
    assert status == 0
    assert "side task" in out


async def test_a_context_of_the_past_is_printed(session: Session, command: Command) -> None:
    first = await session.append([user("a needle")])
    await session.append([user("found it")])
    past = ("context", session.session_id, "--up-to", str(first.head.seq))
    status, out, _ = await command(session, *past)
    assert (status, "a needle" in out, "found it" in out) == (0, True, False)
    status, out, _ = await command(session, *past[:2])
    assert (status, "a needle" in out, "found it" in out) == (0, True, True)
    status, out, err = await command(session, *past[:-1], "1000")
    assert (status, out) == (1, "")
    assert "up_to_seq" in err


async def test_malformed_lines_are_reported_by_number(
    session: Session, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(file_of(HEADER, "{", message(1), "x"))
    status, out, err = await command(session, "import", str(file))
    assert (status, out) == (1, "")
    assert "IMPORT_MALFORMED" in err
    assert "lines=2,4" in err


async def test_a_refused_search_gives_the_reason(session: Session, command: Command) -> None:
    await session.append([user("a")])
    status, _, err = await command(session, "search", session.session_id, "(a)\\1", "--regex")
    assert status == 1
    assert "SEARCH_REFUSED" in err
