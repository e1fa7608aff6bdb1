"""Bodies that are larger than a console reads."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.console.html import read_html
from tests.support.console.raw_http import request, send_raw
from tests.support.console.running_console import RunningConsole, start_console
from tests.support.console.visitors import ConsoleTenant, form_key, read, sign_in, stranger
from tests.support.waiting import eventually

MIB = 1024 * 1024
LIMIT = 2 * MIB
"""The smallest limit of files that a console can have, and that of the other fields."""

OFFERED = 64 * MIB
GROWTH = 24 * MIB


@pytest.fixture(scope="module")
async def small(stack: Stack) -> RunningConsole:
    """Start a console that reads little."""
    folder = stack.data_dir / "small-console"
    return await start_console(stack, folder, "small-console", {"MAX_UPLOAD_BYTES": str(MIB)})


@pytest.fixture
async def person(small: RunningConsole, tenant: ConsoleTenant) -> AsyncIterator[httpx2.AsyncClient]:
    """Sign a person in there."""
    async with stranger(small) as client:
        await sign_in(client, tenant.token())
        yield client


def _cookie(person: httpx2.AsyncClient) -> str:
    return "; ".join(f"{one.name}={one.value}" for one in person.cookies.jar)


def _memory_peak(process_id: int) -> int:
    """Return the most bytes that the process has used since the count began again."""
    (line,) = [one for one in Path(f"/proc/{process_id}/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) * 1024


def _begin_count(process_id: int) -> None:
    Path(f"/proc/{process_id}/clear_refs").write_text("5")


async def test_a_long_body_is_refused_by_its_length(
    small: RunningConsole, person: httpx2.AsyncClient
) -> None:
    """No byte of it is sent: the answer comes before."""
    own = (f"host: {small.host}", f"origin: {small.base_url}", f"cookie: {_cookie(person)}")
    for path in ("/start", "/sign-in", "/sign-out", "/nothing"):
        for length in (LIMIT + 1, 10**12):
            status, answer = await send_raw(small, request("POST", path, *own, f"content-length: {length}"))
            assert status == 413
            assert b"content-security-policy" in answer
            assert b"The form has more than 1.0 MiB" in answer


async def _chunked(
    small: RunningConsole, person: httpx2.AsyncClient, path: str, kind: str, begin: bytes, piece: bytes
) -> int:
    """Send a body without a length until the server answers, and return the number of bytes."""
    host, _, port = small.host.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = request(
        "POST", path, f"host: {small.host}", f"origin: {small.base_url}", f"cookie: {_cookie(person)}",
        f"content-type: {kind}", "transfer-encoding: chunked",
    )  # fmt: skip
    sent = 0

    async def send() -> None:
        nonlocal sent
        writer.write(head)
        for data in (begin, *[piece] * (OFFERED // len(piece))):
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
            sent += len(data)

    sending = asyncio.create_task(send())
    try:
        answer = await reader.read(65_536)
    except (ConnectionResetError, BrokenPipeError):  # The answer is lost with the bytes that were not read.
        answer = b""
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 413")  # A field has a limit of its own.
    return sent


BOUNDARY = "limit"
MULTIPART = (
    f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="files"; filename="a.bin"\r\n'
    "content-type: application/octet-stream\r\n\r\n"
).encode()


@pytest.mark.parametrize(
    ("kind", "begin", "piece"),
    [
        (f"multipart/form-data; boundary={BOUNDARY}", MULTIPART, b"x" * 65_536),
        ("application/x-www-form-urlencoded", b"task=", b"x" * 65_531 + b"&a=b&"),
    ],
)
async def test_a_body_without_a_length_ends_at_the_limit(
    kind: str, begin: bytes, piece: bytes, small: RunningConsole, person: httpx2.AsyncClient
) -> None:
    """The server stops to read: the sender cannot send it all. Neither memory nor a file is left."""
    await read(person, "/start")
    _begin_count(small.pid)
    before = _memory_peak(small.pid)
    for path in ("/start", "/sign-in"):
        assert await _chunked(small, person, path, kind, begin, piece) < OFFERED / 2
    assert _memory_peak(small.pid) - before < GROWTH
    await eventually(lambda: not _unlinked_files(small.pid))


def _unlinked_files(process_id: int) -> list[str]:
    links = []
    for one in Path(f"/proc/{process_id}/fd").iterdir():
        try:
            links.append(str(one.readlink()))
        except OSError:  # It was closed meanwhile.
            continue
    return [link for link in links if link.endswith("(deleted)")]


async def test_a_page_says_that_a_form_is_too_large(
    small: RunningConsole, person: httpx2.AsyncClient
) -> None:
    """A browser that sends no length gets a page, with a number and another way."""
    key = await form_key(person, "/start")

    async def body() -> AsyncIterator[bytes]:
        yield f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="form_key"\r\n\r\n{key}\r\n'.encode()
        yield MULTIPART
        yield b"x" * (LIMIT - 1_000)
        yield b"x" * 1_000

    answer = await person.post(
        "/start", content=body(), headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    )
    assert answer.status_code == 413
    assert "The form has more than 1.0 MiB" in read_html(answer.text).text


async def test_a_form_up_to_the_limit_is_read(small: RunningConsole, person: httpx2.AsyncClient) -> None:
    key = await form_key(person, "/start")
    answer = await person.post(
        "/start", data={"form_key": key, "task": ""}, files={"files": ("a.bin", b"x" * MIB)}
    )
    assert answer.status_code == 400  # The mesh wants a task.
    assert "task" in read_html(answer.text).text


async def test_many_fields_are_refused(person: httpx2.AsyncClient) -> None:
    key = await form_key(person, "/start")
    answer = await person.post("/start/code", data={"form_key": key, **{f"a{n}": "x" for n in range(1_000)}})
    assert answer.status_code == 400
