"""The bodies that the SDKs get: cut errors, and events of one line each."""

import tracemalloc

import httpx2
import pytest
from openai import APIError
from spawnmesh_model_router.clients.providers.bounded_http import bound_body, frame_events
from spawnmesh_model_router.clients.providers.failure import to_provider_failure
from spawnmesh_model_router.clients.providers.sse import MAX_ERROR_BYTES, EventReader
from spawnmesh_model_router.domain.reasons import FailoverReason

from tests.support.model_router.requests import make_request, text, user


async def receive(status: int, body: bytes, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers=named, stream=httpx2.ByteStream(body))

    hooks = {"response": [bound_body, frame_events]}
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), event_hooks=hooks) as http:
        return await http.get("http://one.invalid")


@pytest.mark.parametrize(
    ("sent", "framed"),
    [
        (b"data: 1\n\ndata:2\n\n", b"data: 1\n\ndata: 2\n\n"),
        (b"event: ping\r\ndata: {}\r\n\r\ndata: 2\n\n", b"event: ping\ndata: {}\n\ndata: 2\n\n"),
        (b"data: [\ndata: 1]\n\n", b"data: [ 1]\n\n"),
        (b"event: a\rb\ndata: [\r1]\n\n", b"event: a b\ndata: [ 1]\n\n"),
        (b": alive\n\nid: 7\nretry: 9\ndata: 1\n\n", b"data: 1\n\n"),
        (b"event: lost\n\ndata: 1", b"data: 1\n\n"),
        (b'{"error":\n {"code": 7}}', b'data: {"error": {"code": 7}}\n\n'),
        (b'data: 1\n\n{\n\n"error": "x"}\n', b'data: 1\n\ndata: {"error": "x"}\n\n'),
        (b"<html>", b""),
    ],
)
async def test_event_is_one_line_behind_its_name(sent: bytes, framed: bytes) -> None:
    assert (await receive(200, sent)).content == framed


async def test_error_body_is_cut_and_others_are_not() -> None:
    long = b"data: " + b"x" * MAX_ERROR_BYTES + b"\n\n"
    assert (await receive(500, long)).content == long[:MAX_ERROR_BYTES]
    assert (await receive(200, long)).content == long


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip", "none-such"])
async def test_encoded_body_is_not_read(encoding: str) -> None:
    assert (await receive(500, b"anything", content_encoding=encoding)).content == b""
    with pytest.raises(ValueError, match="encoded"):
        await receive(200, b"anything", content_encoding=encoding)
    assert (await receive(500, b"plain", content_encoding="identity")).content == b"plain"


@pytest.mark.parametrize(
    ("charset", "read"),
    [
        ("iso-8859-1", "é-eb"),
        ("windows-1252", "é-eb"),
        ("cp9999", "\ufffd-eb"),
        ("punycode", "\ufffd-eb"),
        ("zlib", "\ufffd-eb"),
    ],
)
async def test_text_is_decoded_by_charsets_alone(charset: str, read: str) -> None:
    response = await receive(500, b"\xe9-eb", content_type=f"text/plain; charset={charset}")
    assert response.text == read


def test_lines_between_events_fill_no_memory() -> None:
    reader = EventReader()
    line = b"x" * MAX_ERROR_BYTES + b"\n"
    tracemalloc.start()
    for _ in range(64):
        assert reader.feed(b"data: 1\n\n") == ["1"]
        reader.feed(line)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 8 * MAX_ERROR_BYTES


def test_error_that_is_too_deep_to_be_written_cannot_be_read() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    error = APIError("x", httpx2.Request("POST", "http://one.invalid"), body={"error": deep})
    failed = to_provider_failure(error, "p", make_request(user(text("hi"))), has_output=False)
    assert failed.reason is FailoverReason.SERVER_ERROR
