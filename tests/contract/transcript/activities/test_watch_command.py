"""`spawnmesh transcript watch`, `context` and `recount` against the running service."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from spawnmesh.transcript.v1 import activity_service_pb2 as pb
from spawnmesh_client.activities import FROM_START, watch_activities
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_command.cli.watch import activity_line
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import assistant, user
from tests.support.transcript.commands import Command
from tests.support.transcript.counts import CL100K, TEXT, say, set_vocabulary
from tests.support.transcript.fixtures import Session
from tests.support.transcript.tier import NO_TAIL, Tiered, long_text

SECONDS = 60.0


@asynccontextmanager
async def watching(session: Session, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    target = session.service.target
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from spawnmesh_command.cli.app import main; main()",
        "--session-target", target, "--transcript-target", target, "transcript", "watch", *arguments,
        env={"SPAWNMESH_TOKEN": session.client_token(), "PATH": "", "PYTHONFAULTHANDLER": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        return (await process.stdout.readline()).decode()


async def test_watch_prints_activities_as_they_come_and_ends_on_ctrl_c(tiered: Tiered) -> None:
    session = tiered.session
    claim = await session.acquire(1)
    await tiered.converse(claim, long_text("a"), name="exec\x1b[31m")
    await session.append([assistant("end")], claim=claim)
    async with watching(session, session.session_id, "--from-start") as process:
        stubbed = await line_of(process)
        assert "stubbed  seq 3  exec__31m  10,000 bytes" in stubbed
        assert session.session_id not in stubbed
        [one] = (await tiered.context(tail=NO_TAIL)).stubbed
        await tiered.describe(one.file_ids[0], expand=True, bytes={"length": 8})
        assert f"drilled down  {one.file_ids[0]}  bytes  by a client  8 bytes" in await line_of(process)
        process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(SECONDS):
                await process.wait()
        except TimeoutError:
            process.send_signal(signal.SIGABRT)  # The place where the command hangs, for the log.
        out, err = await process.communicate()
        assert (process.returncode, out, err.decode()) == (0, b"", "")


async def test_watch_of_a_tenant_in_json(tiered: Tiered) -> None:
    await tiered.converse(await tiered.session.acquire(1), long_text("a"))
    async with watching(tiered.session, "--from-start", "--json") as process:
        activity = json.loads(await line_of(process))
        assert (activity["session_id"], activity["stubbed"]["seq"]) == (tiered.session.session_id, "3")


async def test_watch_of_an_unknown_session_is_refused(session: Session, command: Command) -> None:
    code, out, err = await command(session, "watch", session.sibling().session_id)
    assert (code, out) == (1, "")
    assert "NOT_FOUND" in err


async def test_watch_activities_survives_a_restart_and_prints_each_once(tiered: Tiered, keys: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    session = tiered.session
    settings = TranscriptSettings(**shared_settings("transcript", keys), database_url=session.service.dsn.app)
    claim = await session.acquire(1)
    async with caller_at(f"127.0.0.1:{port}", "transcript") as peer, asyncio.timeout(2 * SECONDS):
        activities = watch_activities(
            TokenPeer(peer.connection, session.client_token()), session.session_id, after_position=FROM_START
        )
        async with aclosing(activities):
            seqs = []
            for number in range(2):
                await tiered.converse(claim, long_text(f"w{number}"))
                async with served("transcript", settings, open_service, port=port):
                    seqs.append((await anext(activities)).stubbed.seq)
    assert seqs == [3, 5]


async def test_context_prints_what_a_model_reads_and_what_is_missing(
    tiered: Tiered, command: Command
) -> None:
    session = tiered.session
    await session.append([user("a task\x1b[2J\nwith lines")])
    claim = await session.acquire(1)
    await tiered.converse(claim, *(long_text(f"w{number}x", 60_000) for number in range(6)))
    await session.append([assistant("waiting", "c")], claim=claim)
    code, out, err = await command(session, "context", session.session_id)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "a task\\x1b[2J with lines" in lines[0]
    assert "stub       [Tool output file_" in out
    assert "  tail  " in lines[12]
    assert lines[14].split()[0] == "-"
    assert "synthetic" in lines[14]
    assert lines[15].startswith("15 entries, ")
    assert lines[15].endswith(", 1 synthetic results")
    assert lines[16] == "counted by o200k_base"
    _, small, _ = await command(
        session, "context", session.session_id, "--budget", "500", "--model", "anthropic/claude-x"
    )
    assert "dropped 1-" in small
    assert ", budget" in small
    assert "counts are estimates for anthropic/claude-x, made from o200k_base" in small
    _, printed, _ = await command(session, "context", session.session_id, "--json")
    assert json.loads(printed)["token_vocabulary"] == "o200k_base"


async def test_recount_prints_what_would_change_and_changes_it(session: Session, command: Command) -> None:
    await say(session, user(TEXT), assistant(TEXT))
    sibling = session.sibling()
    await sibling.create()
    await sibling.append([user(TEXT)])
    await set_vocabulary(session, 1, CL100K)
    code, _, err = await command(session, "recount")
    assert code == 2
    assert "--dry-run or --apply" in err
    code, planned, _ = await command(session, "recount", "--dry-run")
    assert code == 0
    assert await command(session, "recount", "--apply") == (0, planned, "")
    assert f"{session.session_id}  2 of 3 entries, " in planned
    assert f"{sibling.session_id}  1 of 2 entries, " in planned
    _, nothing, _ = await command(session, "recount", "--session", sibling.session_id, "--apply", "--json")
    assert json.loads(nothing)["recounted_entry_count"] == 0


def test_every_kind_of_activity_has_a_line() -> None:
    for field in pb.Activity.DESCRIPTOR.oneofs_by_name["what"].fields:
        activity = pb.Activity(position=1, session_id="ses_x")
        getattr(activity, field.name).SetInParent()
        line = activity_line(activity, with_session=True)
        assert "ses_x" in line
        assert "does not know" not in line
