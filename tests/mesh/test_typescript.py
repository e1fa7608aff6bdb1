"""The TypeScript client as a user has it: packed, installed elsewhere, compiled, and run."""

import asyncio
import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client import Agent, Attachment
from spawnmesh_client import connect as open_mesh
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.session_diff import SessionDiff
from spawnmesh_client.wire import connect_wire as connect
from spawnmesh_client.worker import Worker
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.docs.code_blocks import typed
from tests.support.links import open_link, to_address
from tests.support.npm import install_packages
from tests.support.typescript import SOURCE, build_package

MIB = 1024 * 1024
PROGRAMS = Path(__file__).with_name("typescript")
(README,) = typed("clients/typescript/README.md", "ts")
(PUBLISHED,) = typed("docs/howto/published-files.md", "ts")
STRICT = ("--strict", "--module", "nodenext", "--target", "es2022", "--types", "node", "--noEmitOnError")
pytestmark = pytest.mark.timeout(420)  # The first test installs packages, too.


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the installed package, and the compiled programs that use it."""
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "build").mkdir()
    package = build_package(folder / "build")
    user = folder / "user"
    user.mkdir()
    needed = json.loads((SOURCE / "package.json").read_text())["devDependencies"]
    tools = [f"{name}@{needed[name]}" for name in ("typescript", "@types/node")]
    install_packages(user, package.packed, *tools)
    for program in PROGRAMS.glob("*.mts"):
        shutil.copy(program, user)
    (user / "readme.mts").write_text(README)
    (user / "published.mts").write_text(PUBLISHED)
    for number, block in enumerate(typed("docs/howto/typescript.md", "ts")):
        (user / f"howto_{number}.mts").write_text(block)
    names = sorted(path.name for path in user.glob("*.mts"))
    command = ["npx", "--no-install", "tsc", *STRICT, *names]
    done = subprocess.run(command, cwd=user, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    yield user
    shutil.rmtree(folder)


async def a_tenant(stack: Stack, **settings: Any) -> str:
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant, settings=TenantSettings(**settings))
    return tenant


async def started(program: str, folder: Path, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "node", program, cwd=folder, env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


async def printed(program: str, folder: Path, **environment: str) -> str:
    """Return the output of a program, which must end by itself."""
    process = await started(program, folder, **environment)
    try:
        async with asyncio.timeout(200):
            answer, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, errors.decode()) == (0, "")
    return answer.decode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_program_of_a_user_spawns_watches_and_catches_refusals(stack: Stack, programs: Path) -> None:
    found: dict[str, Any] = json.loads(
        await printed(
            "program.mjs",
            programs,
            SESSION=stack.targets["session"],
            TRANSCRIPT=stack.targets["transcript"],
            TOKEN=stack.client_token(await a_tenant(stack)),
        )
    )
    events = found.pop("events")
    assert [number for number, *_ in events] == list(range(1, len(events) + 1))
    assert (events[0][1], events[-1][1]) == ("PROVISIONING", "CLOSED")
    assert [state for _, kind, state in events if kind == "RUN"][-1] == "SUCCEEDED"
    text = found.pop("text")
    assert sha256(b"hello") in text, "the answer depends on the bytes"
    assert sha256(b"from a path") in text
    asked = found.pop("asked")
    assert asked[0] == "header"
    assert {"USER", "ASSISTANT"} <= set(asked)
    assert found == {
        "agents": ["default", "reader"],
        "spawned": [True, {"ticket": "17"}, ["report.md", "notes.txt"]],
        "created": True,
        "state": "CLOSED",
        "usage": True,
        "failure": ["UNKNOWN_MODEL", "FAILED", True],
        "unknownAgent": ["UNKNOWN_AGENT", "session.spawnmesh"],
        "unknownSession": "session",
        "malformed": ["task"],
        "badToken": "TOKEN_INVALID",
        "talked": [True, "CLOSED", 1, 1],
        "interrupted": ["SUCCEEDED", None, True],
        "archivedIsHidden": [False, True, True],
        "ticket": True,
        "agent": [1, True],
        "wire": True,
        "left": ["default"],
    }


async def test_watch_goes_on_after_its_connection_is_cut(stack: Stack, programs: Path) -> None:
    token = stack.client_token(await a_tenant(stack))
    async with (
        connect(session=stack.targets["session"], token=token) as mesh,
        open_link(to_address(stack.targets["session"])) as link,
    ):
        session = await mesh.spawn("Say hello.", mode=session_pb2.SESSION_MODE_SESSION, wait_seconds=60)
        session_id = session.session_id
        process = await started(
            "watch.mjs", programs, SESSION=link.target, TOKEN=token, SESSION_ID=session_id
        )
        assert process.stdout is not None
        seen: list[tuple[int, str, str]] = []

        async def read_until(count: int) -> None:
            """Read until so many runs have succeeded, or the program ends."""
            while sum(state == "SUCCEEDED" for _, _, state in seen) < count:
                assert process.stdout is not None
                line = await process.stdout.readline()
                if not line:
                    return
                seen.append(tuple(json.loads(line)))

        try:
            async with asyncio.timeout(200):
                await read_until(1)
                assert link.cut() > 0
                await mesh.send(session_id, "And again.")
                await read_until(2)
                assert link.cut() > 0, "the watch did not come back"
                await mesh.kill(session_id)
                await read_until(99)
                errors = await process.stderr.read() if process.stderr else b""
                code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    assert (code, errors.decode()) == (0, "")
    assert [number for number, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][1] == "CLOSED"


async def test_large_files_arrive_whole_although_the_upload_is_cut_and_are_downloaded(
    stack: Stack, programs: Path, tmp_path: Path
) -> None:
    data = random.Random(5).randbytes(24 * MIB)
    (tmp_path / "large.bin").write_bytes(data)
    limits = AttachmentLimits(
        enabled=True, max_file_count=50, max_file_bytes=32 * MIB, max_total_bytes=64 * MIB
    )
    token = stack.client_token(await a_tenant(stack, attachments=limits, retain_on_session_keep=True))
    async with open_link(to_address(stack.targets["attachment-blob"])) as link:
        targets = {"session": stack.targets["session"], "attachment-blob": link.target}
        file = str(tmp_path / "large.bin")
        process = await started("files.mjs", programs, TARGETS=json.dumps(targets), TOKEN=token, FILE=file)
        assert process.stdout is not None
        assert process.stderr is not None
        steps: list[Any] = []
        cut_at = 0
        try:
            async with asyncio.timeout(200):
                while line := await process.stdout.readline():
                    steps.append(json.loads(line))
                    if not cut_at and len(steps) > 12:
                        cut_at = len(steps)
                        assert link.cut() > 0
                errors, code = await process.stderr.read(), await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    assert code == 0, errors.decode()
    assert errors == b""
    last = steps.pop()
    assert last["downloaded"] == last["files"]
    assert last["files"] == [
        ["small.txt", 5, sha256(b"small")],
        ["large.bin", len(data), sha256(data)],
        ["content.bin", 3 * MIB, sha256(data[: 3 * MIB])],
    ]
    sizes = {name: done for name, done, _ in steps}
    assert sizes == {"large.bin": len(data), "content.bin": 3 * MIB}
    assert cut_at, "the upload was not cut"


async def test_program_searches_and_works_with_operations_plugins_models_and_files(
    stack: Stack, programs: Path
) -> None:
    names = ("session", "transcript", "attachment-blob", "model-router", "hook")
    targets = json.dumps({name: stack.targets[name] for name in names})
    token = stack.client_token(await a_tenant(stack))
    found = json.loads(await printed("resources.mjs", programs, TARGETS=targets, TOKEN=token))
    search, operations = found.pop("search"), found.pop("operations")
    answer, task = search["words"]
    assert [answer[1:], task[1:]] == [["MESSAGE", True], ["MESSAGE", True]]
    assert answer[0] > task[0], "the newest hit comes first"
    assert search["pattern"] == [task]
    assert (search["limited"], search["none"], search["refused"]) == (1, 0, True)
    recounted, tiered, done, changed = operations.pop("examined")
    assert recounted == tiered == done > 2
    assert changed == 0
    assert operations == {
        "isSame": True,
        "request": "RecountTranscript",
        "listed": [
            ["TierTranscript", True, "TierTranscript", "TierTranscript"],
            ["RecountTranscript", True, "RecountTranscript", "RecountTranscript"],
        ],
        "disabled": [True, "TIER_DISABLED"],
        "deleted": True,
        "missing": True,
        "elsewhere": True,
    }
    assert found == {
        "answered": True,
        "plugins": [["LLM_OUTPUT"], ["CONVERSATION_ACCESS"], 7, True, 0],
        "models": 1,
        "uploads": [True, 5000],
        "run": ["SUCCEEDED", True],
        "children": [0, [True]],
    }


async def test_program_of_an_operator_works_with_tenants_and_a_client_sees_its_spending(
    stack: Stack, programs: Path
) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    names = ("session", "transcript", "attachment-blob", "model-router", "hook")
    found = json.loads(
        await printed(
            "tenants.mjs",
            programs,
            TARGETS=json.dumps({name: stack.targets[name] for name in names}),
            TOKEN=stack.admin_token(),
            TENANT=tenant,
            CLIENT_TOKEN=stack.client_token(tenant),
        )
    )
    assert found == {
        "missing": True,
        "created": ["ACTIVE", "A", 1],
        "updated": [2, 3],
        "refusals": ["ETAG_DIFFERS", "INVALID_REQUEST", "OPERATION_NOT_CANCELLABLE"],
        "isListed": True,
        "spent": ["SUCCEEDED", "default", True, True, True],
        "isSame": True,
        "deleted": ["DELETED", 1, 1],
        "listed": ["DeleteTenant"],
    }


async def test_program_compares_sessions_as_the_python_client_does(stack: Stack, programs: Path) -> None:
    token = stack.client_token(await a_tenant(stack))
    targets = {name: stack.targets[name] for name in ("session", "transcript", "attachment-blob")}
    async with open_mesh(targets=targets, token=token) as mesh:
        files = [Attachment("a.txt", b"1")]
        source = await mesh.spawn("Say hello.", attachments=files, mode="SESSION")
        await source.result(timeout=60)
        answered = max([one.seq async for one in source.transcript() if one.role == "ASSISTANT"])
        await source.send("Go on.")
        await source.result(timeout=60)
        fork = await mesh.spawn("Stop.", fork_of=source, fork_at_seq=answered)
        same = await mesh.spawn("Say hello.", attachments=files)
        for session in (fork, same):
            await session.result(timeout=60)
        long = await mesh.spawn("word " * 30_000, mode="SESSION")  # More than a fork copies.
        await long.result(timeout=60)
        await long.send("Go on.")
        await long.result(timeout=60)
        newest = max([one.seq async for one in long.transcript() if one.role == "ASSISTANT"])
        late = await mesh.spawn("Stop.", fork_of=long, fork_at_seq=newest)
        await late.result(timeout=60)
        pairs = [(source, fork), (fork, source), (source, same), (source, source), (long, late), (fork, late)]
        found = [await mesh.diff(a, b, max_entries=3) for a, b in pairs]
    assert (found[0].common_seq_a, found[3].is_equal) == (answered, True)
    assert found[4].left_out_count
    ids = json.dumps([[a.session_id, b.session_id] for a, b in pairs])
    printed_diffs = json.loads(
        await printed("diff.mjs", programs, TARGETS=json.dumps(targets), TOKEN=token, PAIRS=ids)
    )
    assert printed_diffs == {"found": [as_printed(one) for one in found], "missing": True}


def as_printed(diff: SessionDiff) -> dict[str, Any]:
    """Return what the program prints of it."""
    forked = diff.forked_at
    return {
        "common": [diff.common_count, diff.common_message_count, diff.common_seq_a, diff.common_seq_b],
        "left_out": diff.left_out_count,
        "forked_at": None if forked is None else [forked.session_id, forked.seq],
        "only": [[one.seq for one in diff.only_a], [one.seq for one in diff.only_b]],
        "is_cut": [diff.is_cut_a, diff.is_cut_b],
        "superseded": sorted(diff.superseded),
        "answers": [diff.answer_a, diff.answer_b],
        "is_equal": diff.is_equal,
    }


async def test_program_of_the_page_downloads_and_hands_on_published_files(
    stack: Stack, gateway: str, programs: Path
) -> None:
    tenant = await a_tenant(stack)
    token, url = stack.client_token(tenant), f"http://{gateway}"
    minter = TokenMinter("client", stack.keys / "client.pem")
    claims = minter.runner_token("ours", 3600, tenants=[tenant], agents=["writer"])

    async def write(ctx: RunContext) -> str:
        await ctx.publish(Attachment("report.md", b"# Draft"), Attachment("pumps.csv", b"a,b"))
        await ctx.publish(Attachment("report.md", b"# Report"), Attachment("package.json", b"{}"))
        return "It is ready."

    async with (
        open_mesh(url, token=token) as mesh,
        open_mesh(url, token=claims) as runner,
        asyncio.TaskGroup() as group,
    ):
        worker = Worker(runner)
        worker.agent("writer")(write)
        group.create_task(worker.run())
        await mesh.agents.put(Agent("writer"))
        session = await mesh.spawn("Write.", agent="writer", runtime="EXTERNAL")
        await session.result(timeout=120)
        first, second = [one.set_id async for one in session.outputs()]
        worker.stop()
    environment = {"SPAWNMESH_URL": url, "SPAWNMESH_TOKEN": token, "SESSION_ID": session.session_id}
    own = (programs / "package.json").read_bytes()
    told = await printed("published.mjs", programs, **environment)
    assert "[ 'report.md: 7 bytes', 'pumps.csv: 3 bytes' ]" in told
    for data in (b"# Draft", b"a,b", b"# Report", b"{}"):
        assert sha256(data) in told, "the answers of the next sessions"
    saved = programs / "saved"
    assert {str(path.relative_to(saved)): path.read_bytes() for path in saved.glob("*/*")} == {
        f"{first}/report.md": b"# Draft",
        f"{first}/pumps.csv": b"a,b",
        f"{second}/report.md": b"# Report",
        f"{second}/package.json": b"{}",
    }
    assert (programs / "package.json").read_bytes() == own, "an agent chose the name of a file of the user"


async def test_one_address_serves_grpc_and_grpc_web(stack: Stack, gateway: str, programs: Path) -> None:
    found: dict[str, Any] = json.loads(
        await printed(
            "gateway.mjs",
            programs,
            GATEWAY=f"http://{gateway}",
            TOKEN=stack.client_token(await a_tenant(stack)),
        )
    )
    for protocol in ("grpc", "web"):
        assert found[protocol] == {
            "last": "CLOSED",
            "state": "SUCCEEDED",
            "roles": ["USER", "ASSISTANT"],
            "answered": True,
            "audited": True,
            "refused": ["FailedPrecondition", "UNKNOWN_AGENT", "session.spawnmesh"],
            "token": ["Unauthenticated", "TOKEN_INVALID"],
        }
