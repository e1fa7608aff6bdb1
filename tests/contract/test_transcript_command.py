"""`spawnmesh transcript` against the running service."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.contract.commands import open_commands
from tests.contract.transcript_files import HEADER, file_of, message, values
from tests.contract.transcript_fixtures import Session, service, session, user

__all__ = ["service", "session"]


Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture(scope="module")
async def command() -> AsyncIterator[Command]:
    """Exit code, output and errors of the command with the arguments, run as a client of the session's tenant."""
    async with open_commands() as commands:

        async def run(session: Session, *arguments: str) -> tuple[int, str, str]:
            await session.enter_tenant()
            target = session.service.target
            options = ("--session-target", target, "--transcript-target", target, "transcript", *arguments)
            return await commands.run(*options, env={"SPAWNMESH_TOKEN": session.client_token(), "PATH": ""})

        yield run


async def test_a_session_file_goes_in_and_comes_out(session: Session, tmp_path: Path, command: Command) -> None:
    file, copy = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(file_of(HEADER, message(1, content="a needle"), message(2, "assistant", "found it")))
    status, out, err = await command(session, "import", str(file), "--json")
    imported = json.loads(out)
    assert (status, imported["state"]) == (0, "IMPORT_STATE_COMPLETE")
    session_id = imported["session_id"]
    again = f"spawnmesh transcript import {file} --session-id {session_id}"
    assert err == f"importing as {session_id}; if this is cut off, go on with: {again}\n"
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


async def test_malformed_lines_are_told_by_number(session: Session, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(file_of(HEADER, "{", message(1), "x"))
    status, out, err = await command(session, "import", str(file))
    assert (status, out) == (1, "")
    assert "IMPORT_MALFORMED" in err
    assert "lines=2,4" in err


async def test_a_refused_search_says_why(session: Session, command: Command) -> None:
    await session.append([user("a")])
    status, _, err = await command(session, "search", session.session_id, "(a)\\1", "--regex")
    assert status == 1
    assert "SEARCH_REFUSED" in err
