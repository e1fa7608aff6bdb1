"""Objects that are open for reading."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from spawnmesh_attachment_blob.clients.objects import ObjectStore
from spawnmesh_attachment_blob.clients.s3_calls import S3Calls
from spawnmesh_attachment_blob.clients.s3_puts import ObjectPuts
from spawnmesh_attachment_blob.clients.s3_silence import S3Silence
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets


class Response:
    """Records how it was closed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")

    def release_conn(self) -> None:
        self.calls.append("release_conn")


class SlowBuckets:
    """Answers with `response` once `answers` is set."""

    def __init__(self) -> None:
        self.response = Response()
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def call_in_bucket(self, _tenant_id: str, _call: Callable[..., Any]) -> Response:
        self.is_asked.set()
        self.answers.wait(600)
        return self.response


async def test_an_object_that_arrives_after_a_cancellation_is_closed() -> None:
    buckets = SlowBuckets()
    async with ClientSession() as session:
        silence = S3Silence(session, "http://unused")
    with ThreadPoolExecutor(1) as threads:
        objects = ObjectStore(cast(TenantBuckets, buckets), S3Calls(threads, cast(ObjectPuts, None), silence))

        async def read() -> None:
            async with objects.open("acme", "key"):
                raise AssertionError("the reader was cancelled before")

        reading = asyncio.create_task(read())
        await asyncio.to_thread(buckets.is_asked.wait, 60)
        reading.cancel()
        buckets.answers.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert buckets.response.calls == ["close", "release_conn"]
