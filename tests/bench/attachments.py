"""The cost of handing over files, and the memory that a large upload takes.

The floors are raw puts of as many bytes into the same S3, a raw multipart upload with parts of the
same size, and an RPC that commits one row.
"""

import asyncio
import hashlib
import io
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import google_crc32c
import psutil
import urllib3
from minio import Minio
from minio.credentials.providers import AssumeRoleProvider
from opentelemetry.trace import NoOpTracer
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_attachment_blob.domain.uploads import PART_BYTES
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer, open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.bench.harness import Bench, Metric, Work
from tests.bench.one_row import one_row_server
from tests.support import tenancy

KIB, MIB = 1024, 1024 * 1024
TENANT = "bench-attachments"
ROUNDS = 150
WARM_UP = 20
THREE_FILES_BOUND = (
    # The bound over the puts and a row. A bound of 1.6 over the puts alone is below that floor.
    1.4
)
LARGE_MIB = 1024
CHUNK = 1 * MIB
MEMORY_BOUND_MIB = 200.0


async def run(bench: Bench) -> None:
    """Compare staged sets with raw puts, then upload one gibibyte."""
    stack = await bench.stack()
    async with (
        _blobs(stack, stack.targets["attachment-blob"]) as blobs,
        one_row_server(stack) as target,
        _blobs(stack, target) as one_row,
    ):
        await blobs.prepare()
        with raw_puts(stack, TENANT) as raw:
            await _stage_latency(bench, blobs, Floors(raw, one_row))
            await _large_upload(bench, blobs, raw, psutil.Process(stack.processes["attachment-blob"].pid))


class Blobs:
    """The attachment-blob service, called by the session service and by a client of one tenant."""

    def __init__(self, peer: Peer, client_token: str) -> None:
        self._peer = peer
        self._stub = AttachmentBlobServiceStub(peer.channel)
        self._client_token = client_token

    async def prepare(self) -> None:
        """Let the tenant hand over files of any size."""
        limits = pb.AttachmentLimits(
            enabled=True, max_file_count=50, max_file_bytes=LARGE_MIB * MIB, max_total_bytes=LARGE_MIB * MIB
        )
        with impersonate(TENANT):
            await tenancy.prepare(self._peer, 1, attachments=limits)

    async def stage(self, files: Sequence[bytes]) -> None:
        """Stage a new set of these files."""
        items = [
            attachment_pb2.InlineAttachment(
                name=f"{number}.bin",
                content=b64encode(data).decode(),
                encoding=attachment_pb2.ENCODING_BASE64,
            )
            for number, data in enumerate(files)
        ]
        request = pb.StageSetRequest(
            set_id=new_id(IdKind.ATTACHMENT_SET), session_id=new_id(IdKind.SESSION), items=items
        )
        with impersonate(TENANT):
            await self._peer.unary(self._stub.StageSet, request, timeout_seconds=30)

    async def upload(self, messages: AsyncIterator[pb.UploadFileRequest]) -> upload_pb2.Upload:
        """Upload a file in one stream."""
        with use_token(self._client_token):
            # `unary` also makes a call with a stream of requests; its type does not say so.
            answer: pb.UploadFileResponse = await self._peer.unary(
                cast(Any, self._stub.UploadFile), messages, timeout_seconds=600
            )
        return answer.upload


class RawPuts:
    """Puts objects with the client library alone, one thread for each put.

    As in the service, the bucket and the credentials are those of the tenant.
    """

    def __init__(self, client: Minio, bucket: str, threads: ThreadPoolExecutor) -> None:
        self._client = client
        self._bucket = bucket
        self._threads = threads

    async def slowest(self, files: Sequence[bytes]) -> float:
        """Put the files concurrently and return the seconds of the slowest put."""
        loop = asyncio.get_running_loop()
        return max(
            await asyncio.gather(*(loop.run_in_executor(self._threads, self._put, data) for data in files))
        )

    def _put(self, data: bytes) -> float:
        key = f"raw/{hashlib.sha256(data).hexdigest()}"
        began = perf_counter()
        self._client.put_object(self._bucket, key, io.BytesIO(data), len(data))
        return perf_counter() - began

    async def upload(self, block: bytes, count: int) -> float:
        """Upload the block so many times as one object in parts, and return the seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._upload, block, count)

    def _upload(self, block: bytes, count: int) -> float:
        began = perf_counter()
        self._client.put_object(
            self._bucket, "raw/large", RepeatedBlock(block), len(block) * count, part_size=PART_BYTES
        )
        return perf_counter() - began


class RepeatedBlock(io.RawIOBase):
    """A stream that repeats a block for ever."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self._block = block
        self._left = memoryview(block)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, never more than what is left of a block."""
        if not self._left:
            self._left = memoryview(self._block)
        part = self._left if size < 0 else self._left[:size]
        self._left = self._left[len(part) :]
        return bytes(part)


@dataclass(frozen=True, slots=True)
class Floors:
    """Raw puts, and a StageSet that commits one row and puts nothing."""

    raw: RawPuts
    one_row: Blobs

    async def puts_and_one_row(self, files: Sequence[bytes]) -> float:
        """Return the seconds of the slowest put plus those of the call: rows are committed after
        the bytes are stored.
        """
        slowest = await self.raw.slowest(files)
        began = perf_counter()
        await self.one_row.stage(files)
        return slowest + perf_counter() - began


@asynccontextmanager
async def _blobs(stack: Stack, target: str) -> AsyncIterator[Blobs]:
    minter = TokenMinter("session", stack.keys / "session.pem")
    process = Process("bench", ProcessSettings(), minter=minter, verifier=None, tracer=NoOpTracer())
    async with open_peer(process, "attachment-blob", target) as peer:
        yield Blobs(peer, stack.client_token(TENANT))


@contextmanager
def raw_puts(stack: Stack, tenant_id: str) -> Iterator[RawPuts]:
    """Open the raw puts of a prepared tenant."""
    s3 = stack.s3.endpoint
    bucket = f"spawnmesh-{tenant_id}"
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": resources}],
    }
    with urllib3.PoolManager(maxsize=8) as http, ThreadPoolExecutor(4) as threads:
        credentials = AssumeRoleProvider(
            sts_endpoint=s3.sts_endpoint,
            access_key=s3.access_key,
            secret_key=s3.secret_key,
            policy=json.dumps(policy),
            region=s3.region,
            role_arn=s3.role_arn,
            role_session_name=bucket,
            http_client=http,
        )
        client = Minio(s3.endpoint, credentials=credentials, secure=False, region=s3.region, http_client=http)
        yield RawPuts(client, bucket, threads)


async def _stage_latency(bench: Bench, blobs: Blobs, floors: Floors) -> None:
    for name, count, size, bound in (
        ("1x4KiB", 1, 4 * KIB, None),
        ("3x4KiB", 3, 4 * KIB, THREE_FILES_BOUND),
        ("1x1MiB", 1, MIB, None),
    ):
        await _beside_floors(bench, blobs, floors, f"attachments.stage.{name}", (count, size), bound)
    known = [bench.fresh_bytes(4 * KIB) for _ in range(3)]
    works: dict[str, Work] = {"put": lambda: floors.raw.slowest(known), "stage": lambda: blobs.stage(known)}
    samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    bench.latency("attachments.stage.3x4KiB_known", samples["stage"], samples["put"])


async def _beside_floors(
    bench: Bench, blobs: Blobs, floors: Floors, name: str, files: tuple[int, int], bound: float | None
) -> None:
    """Stage new files in each round, and put others of the same sizes.

    Each round begins with another of the works.
    """
    count, size = files

    def fresh_files() -> list[bytes]:
        return [bench.fresh_bytes(size) for _ in range(count)]

    async def stage() -> float:
        data = fresh_files()
        began = perf_counter()
        await blobs.stage(data)
        return perf_counter() - began

    works: dict[str, Work] = {
        "put": lambda: floors.raw.slowest(fresh_files()),
        "floor": lambda: floors.puts_and_one_row(fresh_files()),
        "stage": stage,
    }
    samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
    bench.latency(name, samples["stage"], samples["floor"], bound)
    bench.latency(f"{name}.over_puts", samples["stage"], samples["put"])
    bench.latency(f"{name}.floor_over_puts", samples["floor"], samples["put"])


async def _large_upload(bench: Bench, blobs: Blobs, raw: RawPuts, service: psutil.Process) -> None:
    block = bench.fresh_bytes(CHUNK)
    digest = hashlib.sha256()
    for _ in range(LARGE_MIB):
        digest.update(block)
    spec = upload_pb2.UploadSpec(
        upload_id=new_id(IdKind.UPLOAD),
        name="large.bin",
        size_bytes=LARGE_MIB * MIB,
        sha256=digest.hexdigest(),
    )
    crc32c = google_crc32c.value(block)

    async def messages() -> AsyncIterator[pb.UploadFileRequest]:
        yield pb.UploadFileRequest(spec=spec)
        for number in range(LARGE_MIB):
            yield pb.UploadFileRequest(
                chunk=upload_pb2.UploadChunk(offset=number * CHUNK, data=block, crc32c=crc32c)
            )
        yield pb.UploadFileRequest(finish=upload_pb2.UploadFinish())

    done = asyncio.Event()
    watching = asyncio.ensure_future(_highest_rss(service, done))
    used_before = sum(service.cpu_times()[:2])
    began = perf_counter()
    try:
        uploaded = await blobs.upload(messages())
    finally:
        done.set()
        highest = await watching
    took = perf_counter() - began
    used = sum(service.cpu_times()[:2]) - used_before
    if uploaded.state != upload_pb2.UPLOAD_STATE_COMPLETE:
        raise RuntimeError("the upload did not become complete")
    memory_mib = highest / MIB
    bench.record(
        Metric(
            "attachments.upload.1GiB_rss", memory_mib, "MiB", None, None, samples=1, bound=MEMORY_BOUND_MIB
        )
    )
    bench.record(Metric("attachments.upload.1GiB_rate", LARGE_MIB / took, "MiB/s", None, None, samples=1))
    bench.record(Metric("attachments.upload.1GiB_cpu_of_service", used, "s", None, None, samples=1))
    floor = await raw.upload(block, LARGE_MIB)
    bench.record(Metric("attachments.upload.1GiB", took, "s", floor, took / floor, samples=1))


async def _highest_rss(process: psutil.Process, done: asyncio.Event) -> int:
    highest = 0
    while not done.is_set():
        highest = max(highest, process.memory_info().rss)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await done.wait()
    return highest
