"""`spawnmesh transcript import` that is interrupted and resumed: only with the same file."""

import asyncio
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.transcript_files import import_file

from tests.support.serving import caller_at
from tests.support.transcript.commands import Command
from tests.support.transcript.files import HEADER, exported, file_of, go_on, message, send, values
from tests.support.transcript.fixtures import Service, Session
from tests.support.transcript.tables import Superuser

SECONDS = 60.0


def long_file(mark: str) -> bytes:
    """A file of several stored parts."""
    return file_of(HEADER, *(message(number, content=mark * 4000) for number in range(1, 3000)))


async def has_begun(superuser: Superuser, tenant_id: str) -> bool:
    """Return whether a part of the tenant's import is stored."""
    cursor = await superuser.execute(
        "select 1 from imports where tenant_id = %s and byte_count > 0", (tenant_id,)
    )
    return await cursor.fetchone() is not None


async def stopped(
    superuser: Superuser, session: Session, number: signal.Signals, *arguments: str
) -> tuple[int, str, str]:
    """Send the command a signal once a part is stored; returns exit code, output and errors."""
    await session.enter_tenant()
    target = session.service.target
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from spawnmesh_command.cli.app import main; main()",
        "--session-target", target, "--transcript-target", target, "transcript", "import", *arguments,
        env={"SPAWNMESH_TOKEN": session.client_token(), "PATH": ""},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            while not await has_begun(superuser, session.tenant_id):
                assert process.returncode is None
                await asyncio.sleep(0.01)
        process.send_signal(number)
    except BaseException:
        process.kill()
        raise
    finally:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_killed_import_is_resumed_only_with_the_same_file(
    service: Service, superuser: Superuser, tmp_path: Path, command: Command
) -> None:
    fresh = service.session()
    file, other, short = tmp_path / "it's big.jsonl", tmp_path / "other.jsonl", tmp_path / "short.jsonl"
    file.write_bytes(long_file("a"))
    other.write_bytes(long_file("b"))
    short.write_bytes(file_of(HEADER, message(1)))
    code, out, err = await stopped(superuser, fresh, signal.SIGKILL, str(file))
    assert (code, out) == (-signal.SIGKILL, "")
    found = re.fullmatch(r"importing as (ses_\w{26}); if this is interrupted, resume with: (.*)\n", err)
    assert found is not None
    begun = Session(service, fresh.tenant_id, found[1])
    assert shlex.split(found[2]) == ["spawnmesh", "transcript", "import", str(file), "--session-id", found[1]]

    async def refused_file(wrong: Path) -> None:
        code, out, err = await command(begun, "import", str(wrong), "--session-id", begun.session_id)
        assert (code, out) == (1, "")
        assert err.startswith("error: IMPORT_CONTENT_DIFFERS: the import of session")
        assert "leave out --session-id" in err
        assert "go on" not in err

    before = await send(begun, b"", finish=False)
    await refused_file(other)
    await refused_file(short)
    assert await send(begun, b"", finish=False) == before
    for _ in range(2):  # The answer to the first command counts as lost for the second.
        code, out, err = await command(begun, "import", str(file), "--session-id", begun.session_id)
        assert (code, out, err) == (0, f"{begun.session_id}  3000 entries  PI\n", "")
        await refused_file(other)
        await refused_file(short)
    assert values(await exported(begun)) == values(file.read_bytes())


async def test_stored_bytes_are_not_sent_again(service: Service, tmp_path: Path) -> None:
    fresh = service.session()
    file = tmp_path / "in.jsonl"
    file.write_bytes(long_file("a"))
    durable = (
        await send(fresh, file.read_bytes()[:2_000_000], chunk_bytes=500_000, finish=False)
    ).durable_bytes
    assert durable > 0
    told: list[int] = []
    async with caller_at(service.target, "transcript") as peer:
        client = TokenPeer(peer.connection, fresh.client_token())
        done = await import_file(
            client, file, fresh.session_id, lambda _name, so_far, _size: told.append(so_far)
        )
        assert (told[0] > durable, told[-1], done.entry_count) == (True, done.durable_bytes, 3000)
        told.clear()
        assert (
            await import_file(
                client, file, fresh.session_id, lambda _name, so_far, _size: told.append(so_far)
            )
            == done
        )
    assert told == []


@pytest.mark.parametrize(
    ("number", "code", "as_json"), [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, True)]
)
async def test_an_interrupted_import_prints_how_to_resume(
    service: Service,
    superuser: Superuser,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    as_json: bool,
) -> None:
    fresh = service.session()
    file = tmp_path / "big.jsonl"
    file.write_bytes(long_file("a"))
    arguments = ("--session-id", fresh.session_id, *(["--json"] if as_json else []))
    ended, out, err = await stopped(superuser, fresh, number, str(file), *arguments)
    assert (ended, out) == (code, "")
    again = f"spawnmesh transcript import {file} --session-id {fresh.session_id}"
    assert f"stopped; resume with: {again}\n" in err
    assert "Traceback" not in err
    if as_json:
        assert (await go_on(fresh, file.read_bytes())).entry_count == 3000


async def test_an_import_that_cannot_be_resumed_does_not_print_how(
    session: Session, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(file_of(HEADER, message(1)))
    code, out, err = await command(session, "import", str(file), "--session-id", session.session_id)
    assert (code, out) == (1, "")
    assert err.startswith("error: ALREADY_EXISTS")
    assert len(err.splitlines()) == 1
    await session.delete()
    code, out, err = await command(session, "import", str(file), "--session-id", session.session_id)
    assert (code, out) == (1, "")
    assert err.startswith("error: TRANSCRIPT_DELETED")
    assert len(err.splitlines()) == 1
    code, _, err = await command(session, "import", str(file), "--session-id", "ses_1")
    assert code == 1
    assert err.startswith("error: INVALID_REQUEST")
    assert len(err.splitlines()) == 1


class Late(Session):
    """A client whose token has expired."""

    def client_token(self) -> str:
        return self.service.client_minter.client_token(self.tenant_id, "tester", -60)


async def test_a_temporary_refusal_prints_how_to_resume(
    session: Session, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(file_of(HEADER, message(1)))
    code, out, err = await command(Late(session.service, session.tenant_id), "import", str(file))
    assert (code, out) == (1, "")
    told, later, error = err.splitlines()
    again = told.partition(" resume with: ")[2]
    assert later == f"to resume later: {again}"
    assert error.startswith("error: TOKEN_EXPIRED")
