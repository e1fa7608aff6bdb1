"""Two replicas of everything behind client-side round robin do the main job.

Tenants stay isolated, and no call is lost while each process is replaced. The agents use a model
that a user has configured beside the scripted ones.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import grpc.aio
import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.demo_agents import TASK, profiles
from spawnmesh_devstack.demo_evidence import attempts, leftovers
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Done, Job, do_job
from spawnmesh_devstack.demo_plugin import NAME as DEMO_PLUGIN
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.members import SERVICES, scripted_model_member
from spawnmesh_devstack.models import SCRIPTED_FLAKY, choose, config_for, scripted_environment
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.prepare import SCRIPTED_MODEL
from spawnmesh_devstack.scripted_model import AGENT
from spawnmesh_devstack.span_file import load_all_spans, load_spans
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.deploy.policies import call_edges
from tests.support.mesh.compaction import continue_from_summary
from tests.support.mesh.reader import read_code_word
from tests.support.patient_callers import patient_callers
from tests.support.waiting import eventually

GRACE = {f"{name.replace('-', '_').upper()}_DRAIN_GRACE_SECONDS": "3" for name in SERVICES}
PAUSE_SECONDS = 5.0  # The preStop of the chart. A client connects to a new replica within two seconds.
OWN_MODEL = f"openai/{AGENT}"
WORKERS = ("session-worker", "attachment-blob-worker", "transcript-worker", "hook-worker", "runner")


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture(scope="module")
async def pairs(fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start a mesh with two replicas of each service, of each worker and of the runner."""
    (port,) = free_ports(1)
    choice = await choose({"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}, AGENT)
    assert choice.name == OWN_MODEL
    with tempfile.TemporaryDirectory(prefix="spawnmesh-pairs-") as folder:
        async with open_stack(
            Path(folder) / "data",
            _quiet,
            replicas=2,
            runner_count=2,
            router_config=config_for(choice, port, smollm2_port=0),
            ports={SCRIPTED_MODEL: port},
            environment={**scripted_environment(), **choice.secrets, **GRACE},
            execute=fork_server.execute,
        ) as mesh:
            await mesh.start(scripted_model_member(port))
            with patient_callers():
                yield mesh


@asynccontextmanager
async def client_of(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    """Connect as a client of the tenant, which is created if it does not exist."""
    targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        if tenant not in {one.tenant_id for one in await operator.tenants()}:
            await operator.create_tenant(tenant)
    async with connect_wire(**targets, token=stack.client_token(tenant)) as mesh:
        yield mesh


def fresh_tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture(scope="module")
async def story(pairs: Stack) -> tuple[str, Done]:
    """Do the main job; return its tenant and its result."""
    tenant = fresh_tenant()
    folder = pairs.data_dir / "files"
    make_files(folder, 1, small=False)
    files = [folder / name for name in (TABLE, TEXT, PICTURE)]
    job = Job(profiles([SCRIPTED_FLAKY, OWN_MODEL]), TASK, files, 60)
    return tenant, await do_job(pairs, tenant, job, lambda _: None)


async def test_main_job_is_done_and_nothing_is_left(pairs: Stack, story: tuple[str, Done]) -> None:
    tenant, done = story
    assert [session.latest_run.state for session in done.sessions] == [session_pb2.RUN_STATE_SUCCEEDED] * 3
    assert "verified: yes" in done.parent.latest_run.result_text

    async def answered_by_own_model() -> bool:
        spans = load_spans(pairs.traces_file, done.parent.trace_id)
        return {attempt["model"] for attempt in attempts(spans) if not attempt["reason"]} == {OWN_MODEL}

    await eventually(answered_by_own_model)
    assert (await leftovers(pairs, tenant)).counts == {
        "objects": 0,
        "rows": 0,
        "workspaces": 0,
        "processes": 0,
    }


async def test_both_replicas_serve(pairs: Stack, story: tuple[str, Done]) -> None:
    async with client_of(pairs, story[0]) as mesh:
        for _ in range(4):
            await mesh.spawn("Say something.", wait_seconds=30)
    for service in SERVICES:
        for name in (service, f"{service}-2"):
            assert any(event.get("event") == "rpc" for event in events(pairs, name)), (
                f"{name} was never called"
            )


async def test_another_tenant_finds_nothing_on_any_replica(pairs: Stack, story: tuple[str, Done]) -> None:
    session_id = story[1].parent.session_id
    async with client_of(pairs, fresh_tenant()) as stranger:
        blob = stranger.service("attachment-blob")
        get_set = AttachmentBlobServiceStub(blob.channel).GetSet
        request = blob_rpc.GetSetRequest(set_id=story[1].parent.receipt.set_id)
        for _ in range(4):  # Round robin: two calls to each replica of each service.
            for call in (
                stranger.session(session_id),
                stranger.send(session_id, "hello"),
                stranger.kill(session_id),
                anext(aiter(stranger.transcript(session_id))),
                blob.unary(get_set, request, timeout_seconds=60),
            ):
                with pytest.raises(MeshError) as refused:
                    await call
                assert refused.value.reason is Reason.NOT_FOUND, refused.value
            assert [session async for session in stranger.sessions()] == []


def edges_of(stack: Stack) -> set[tuple[str, str]]:
    """Return (caller, callee) of every call in the spans that have arrived."""
    spans = {span.span_id: span for span in load_all_spans(stack.traces_file)}
    return {
        (parent.service, span.service)
        for span in spans.values()
        if span.kind == "server"
        and (parent := spans.get(span.parent_span_id)) is not None
        and parent.kind == "client"
    }


async def test_network_policies_let_through_the_calls_that_are_made_and_no_others(
    pairs: Stack, story: tuple[str, Done]
) -> None:
    # The tenant of the main job offloads no payloads, and its contexts are short.
    await read_code_word(pairs, "x1", stubs=True)
    await continue_from_summary(pairs)
    # The spans of these streams come when they end, after minutes or with their process.
    streams = {(service, "session") for service in SERVICES if service != "session"}
    wanted = call_edges("production") - streams

    async def arrived() -> bool:
        return wanted <= edges_of(pairs)

    with suppress(AssertionError):  # Spans arrive some seconds after the call.
        await eventually(arrived)
    seen = edges_of(pairs)
    deployed = {*SERVICES, "runner"}
    assert {edge for edge in seen if set(edge) <= deployed} - streams == wanted
    assert streams <= call_edges("production")
    assert {called for caller, called in seen if caller == "hook"} - deployed == {DEMO_PLUGIN}


@pytest.mark.timeout(300)
async def test_replacing_every_process_under_load_loses_no_call(pairs: Stack) -> None:
    stop = asyncio.Event()
    spawned: list[str] = []
    failed: list[MeshError] = []

    async def spawn_steadily(mesh: WireMesh) -> None:
        while not stop.is_set():
            try:
                session = await mesh.spawn("Say something.", attachments=[Attachment("a.txt", b"alpha\n")])
                spawned.append((await mesh.session(session.session_id)).session_id)
            except MeshError as error:
                failed.append(error)
            await asyncio.sleep(0.3)

    async def replace(name: str) -> None:
        """Replace the two replicas one after the other, with the pause of the chart in between."""
        await pairs.restart(name)
        await asyncio.sleep(PAUSE_SECONDS)
        await pairs.restart(f"{name}-2")

    async with client_of(pairs, fresh_tenant()) as mesh:
        async with asyncio.TaskGroup() as load:
            for _ in range(2):
                load.create_task(spawn_steadily(mesh))
            await asyncio.gather(*(replace(name) for name in (*SERVICES, *WORKERS)))
            stop.set()
        assert [f"{error.reason}: {error}" for error in failed] == []
        assert len(spawned) > 10
        for session_id in spawned:
            waited = await mesh.wait(session_id, 60)
            assert waited.session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, waited.session


def events(stack: Stack, name: str) -> Iterator[dict[str, object]]:
    """Return the events in the log of a process."""
    for line in (stack.data_dir / "logs" / f"{name}.log").read_text().splitlines():
        if line.startswith("{"):
            yield json.loads(line)


async def test_spawns_and_runs_go_on_while_one_replica_of_each_service_hangs(pairs: Stack) -> None:
    async def spawn(mesh: WireMesh, number: int) -> str:
        """Spawn, and repeat the request as a client would if it is refused meanwhile."""
        files = [Attachment("a.txt", b"%d" % number)]

        async def spawned() -> str:
            try:
                return (
                    await mesh.spawn("Say something.", attachments=files, request_id=f"hung-{number}")
                ).session_id
            except MeshError as error:
                if error.status is not Status.UNAVAILABLE:
                    raise
                return ""

        return await eventually(spawned)

    async with client_of(pairs, fresh_tenant()) as mesh:
        await mesh.spawn("Say something.", wait_seconds=60)
        hung = [pairs.processes[f"{name}-2"] for name in SERVICES]
        for process in hung:
            process.pause()
        try:
            sessions = await asyncio.gather(*(spawn(mesh, number) for number in range(8)))
            for session_id in sessions:
                ended = (await mesh.wait(session_id, 60)).session
                assert ended.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, ended
        finally:
            for process in hung:
                process.resume()


async def test_killed_replica_fails_no_call_that_may_be_repeated_through_the_gateway(pairs: Stack) -> None:
    tenant = fresh_tenant()
    async with client_of(pairs, tenant) as mesh:
        session = await mesh.spawn("Say something.", wait_seconds=60)
    request = session_rpc.GetSessionRequest(session_id=session.session_id).SerializeToString()
    headers = (("authorization", f"Bearer {pairs.client_token(tenant)}"),)
    gateway = await pairs.start_gateway()
    answered, failed = 0, []
    stop = asyncio.Event()
    # A client that repeats nothing itself.
    options = [("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0)]

    async def call_steadily(channel: grpc.aio.Channel) -> None:
        nonlocal answered
        call = channel.unary_unary("/spawnmesh.session.v1.SessionService/GetSession")
        while not stop.is_set():
            try:
                await call(request, metadata=headers)
                answered += 1
            except grpc.aio.AioRpcError as error:
                failed.append(str(error.details()))

    async with grpc.aio.insecure_channel(gateway, options=options) as channel, asyncio.TaskGroup() as load:
        callers = [load.create_task(call_steadily(channel)) for _ in range(4)]
        try:
            await eventually(lambda: answered > 50)
            await pairs.processes["session-2"].kill()
            before = answered
            await eventually(lambda: answered > before + 200 or all(one.done() for one in callers))
        finally:
            stop.set()
    await pairs.restart("session-2")
    assert failed == []
