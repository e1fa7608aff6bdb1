"""An import belongs to one file: another file cannot resume it, nor learn that it exists."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from spawnmesh.transcript.v1 import archive_service_pb2 as pb
from spawnmesh_core.reasons import Reason

from tests.support.transcript.files import (
    HEADER,
    exported,
    file_of,
    go_on,
    message,
    send,
    send_requests,
    sent_bytes,
    values,
)
from tests.support.transcript.fixtures import Service, Session, refused
from tests.support.transcript.tables import Superuser


def numbered(count: int, mark: str = "a", size: int = 20) -> bytes:
    """Return a file of messages. Files of two marks have lines of the same sizes and ids."""
    return file_of(HEADER, *(message(number, content=mark * size) for number in range(1, count)))


DATA, OTHER = numbered(12, "a"), numbered(12, "b")
ENDS = [end for end in range(1, len(DATA) + 1) if DATA[end - 1 : end] == b"\n"]
HALF = ENDS[5]


async def cut_at(service: Service, end: int = HALF, data: bytes = DATA) -> Session:
    """Return a session whose import was cut off after that byte."""
    fresh = service.session()
    await send(fresh, data[:end], finish=False)
    return fresh


async def durable_bytes(session: Session) -> int:
    return (await send(session, b"", finish=False)).durable_bytes


@pytest.mark.parametrize(
    "end", [0, 1, ENDS[0] - 1, ENDS[0], ENDS[0] + 1, HALF, ENDS[-2], ENDS[-1] - 1, ENDS[-1]]
)
async def test_ImportTranscript__resumes_after_a_cut_anywhere(service: Service, end: int) -> None:
    fresh = await cut_at(service, end)
    assert await durable_bytes(fresh) == max((one for one in ENDS if one <= end), default=0)
    done = await go_on(fresh, DATA)
    assert (done.state, done.durable_bytes, done.entry_count) == (
        pb.IMPORT_STATE_COMPLETE,
        len(DATA),
        len(ENDS),
    )
    assert values(await exported(fresh)) == values(DATA)


async def test_ImportTranscript__resumes_after_a_cut_behind_each_line(service: Service) -> None:
    fresh = service.session()
    for start, end in zip([0, *ENDS], ENDS, strict=False):
        sent = sent_bytes(DATA[:start]) if start else None
        so_far = await send(fresh, DATA[start:end], offset=start, finish=False, sent=sent)
        assert so_far.durable_bytes == end
    assert (await go_on(fresh, DATA)).state == pb.IMPORT_STATE_COMPLETE
    assert values(await exported(fresh)) == values(DATA)


async def test_ImportTranscript__resumes_after_a_cut_in_or_behind_each_stored_part(service: Service) -> None:
    data = numbered(1200, size=2000)
    fresh = service.session()
    for part in (600_000, 1_200_000, 1_200_001, 2_000_000):
        so_far = await durable_bytes(fresh)
        sent = sent_bytes(data[:so_far]) if so_far else None
        await send(fresh, data[so_far:part], offset=so_far, chunk_bytes=70_001, finish=False, sent=sent)
        assert part - 4000 < await durable_bytes(fresh) <= part
    await go_on(fresh, data)
    assert values(await exported(fresh)) == values(data)


Stream = Callable[[bytes, int], dict[str, Any]]
STREAMS: dict[str, Stream] = {
    "named": lambda data, durable: {
        "data": data[durable:],
        "offset": durable,
        "sent": sent_bytes(data[:durable]),
    },
    "named and finished": lambda data, durable: {"data": b"", "sent": sent_bytes(data[:durable])},
    "named alone": lambda data, durable: {"data": b"", "sent": sent_bytes(data[:durable]), "finish": False},
    "unnamed": lambda data, durable: {"data": data[durable:], "offset": durable},
    "from its beginning": lambda data, _: {"data": data},
    "from its beginning, byte by byte": lambda data, _: {"data": data, "chunk_bytes": 1},
}


@pytest.mark.parametrize("stream", list(STREAMS))
async def test_ImportTranscript__another_file_cannot_resume(service: Service, stream: str) -> None:
    fresh = await cut_at(service)
    with refused(Reason.IMPORT_CONTENT_DIFFERS) as facts:
        await send(fresh, **STREAMS[stream](OTHER, HALF))
    assert facts == {"session_id": fresh.session_id, "durable_bytes": str(HALF)}
    assert await durable_bytes(fresh) == HALF
    with refused(Reason.NOT_FOUND):
        await fresh.entries()
    assert (await go_on(fresh, DATA)).entry_count == len(ENDS)
    assert values(await exported(fresh)) == values(DATA)


async def test_ImportTranscript__the_right_file_resumes_with_a_spec(service: Service) -> None:
    fresh = await cut_at(service)
    with refused(Reason.IMPORT_CONTENT_DIFFERS):
        await send(fresh, DATA[HALF:], offset=HALF)
    with refused(Reason.IMPORT_CONTENT_DIFFERS):
        await send(fresh, b"")
    assert await durable_bytes(fresh) == HALF


@pytest.mark.parametrize("chunk_bytes", [1, 7, HALF - 1, HALF, HALF + 1, 100_000])
async def test_ImportTranscript__the_file_sent_from_its_beginning_is_not_stored_twice(
    service: Service, chunk_bytes: int
) -> None:
    fresh = await cut_at(service)
    again = await send(fresh, DATA[: HALF - 3], chunk_bytes=chunk_bytes, finish=False)
    assert (again.state, again.durable_bytes) == (pb.IMPORT_STATE_IMPORTING, HALF)
    done = await send(fresh, DATA, chunk_bytes=chunk_bytes)
    assert (done.state, done.entry_count) == (pb.IMPORT_STATE_COMPLETE, len(ENDS))
    assert values(await exported(fresh)) == values(DATA)


async def test_ImportTranscript__a_shorter_file_is_another_file(service: Service) -> None:
    fresh = await cut_at(service)
    for end in (1, ENDS[0], HALF - 1):
        with refused(Reason.IMPORT_CONTENT_DIFFERS):
            await send(fresh, DATA[:end])
        with refused(Reason.IMPORT_CONTENT_DIFFERS):  # The spec of a sender whose file ends here.
            sent = pb.SentBytes(size_bytes=HALF, line_chain=sent_bytes(DATA[:end]).line_chain)
            await send(fresh, b"", sent=sent)
    assert (await go_on(fresh, DATA)).state == pb.IMPORT_STATE_COMPLETE


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
@pytest.mark.parametrize("data", [DATA, DATA.removesuffix(b"\n")], ids=["with its last end", "without"])
async def test_ImportTranscript__a_finished_import_answers_the_same_file_as_before(
    service: Service, data: bytes, chunk_bytes: int
) -> None:
    fresh = service.session()
    done = await send(fresh, data)
    assert (done.state, done.durable_bytes, done.entry_count) == (
        pb.IMPORT_STATE_COMPLETE,
        len(data),
        len(ENDS),
    )
    assert await send(fresh, data, chunk_bytes=chunk_bytes) == done
    assert await send(fresh, b"", sent=sent_bytes(data)) == done
    assert await send(fresh, b"", finish=False) == done
    assert len(await fresh.entries()) == len(ENDS)


OTHERS: dict[str, bytes] = {
    "of the same size": OTHER,
    "with other bytes at its end": DATA[:-3] + b'"}\n'.replace(b'"', b"'"),
    "without its last line": DATA[: ENDS[-2]],
    "without its last end": DATA.removesuffix(b"\n"),
    "with a line more": DATA + file_of(message(12)),
    "with an end more": DATA + b"\n",
    "of its first byte": DATA[:1],
}


@pytest.mark.parametrize("name", list(OTHERS))
async def test_ImportTranscript__a_finished_import_is_not_shown_for_another_file(
    service: Service, name: str
) -> None:
    fresh, other = service.session(), OTHERS[name]
    done = await send(fresh, DATA)
    stored = await fresh.entries()
    for chunk_bytes in (1, 1000):
        with refused(Reason.IMPORT_CONTENT_DIFFERS) as facts:
            await send(fresh, other, chunk_bytes=chunk_bytes)
        assert facts == {"session_id": fresh.session_id, "durable_bytes": str(len(DATA))}
    # The spec of a client that has read the import's progress.
    with refused(Reason.IMPORT_CONTENT_DIFFERS):
        begun = pb.SentBytes(size_bytes=len(DATA), line_chain=sent_bytes(other[: len(DATA)]).line_chain)
        await send(fresh, other[len(DATA) :], offset=len(DATA), sent=begun)
    assert await send(fresh, DATA) == done
    assert await fresh.entries() == stored


async def test_ImportTranscript__a_finished_import_is_not_shown_without_a_file(service: Service) -> None:
    fresh = service.session()
    await send(fresh, DATA)
    with refused(Reason.IMPORT_CONTENT_DIFFERS):
        await send(fresh, b"")


WRONG: dict[str, bytes] = {
    "of other bytes": sent_bytes(OTHER[:HALF]).line_chain,
    "of fewer lines": sent_bytes(DATA[: ENDS[4]]).line_chain,
    "of more lines": sent_bytes(DATA[: ENDS[6]]).line_chain,
    "of nothing": bytes(32),
    "with one bit more": sent_bytes(DATA[:HALF]).line_chain[:-1]
    + bytes([sent_bytes(DATA[:HALF]).line_chain[-1] ^ 1]),
}


@pytest.mark.parametrize("name", list(WRONG))
async def test_ImportTranscript__a_wrong_hash_is_refused(service: Service, name: str) -> None:
    fresh = await cut_at(service)
    with refused(Reason.IMPORT_CONTENT_DIFFERS):
        await send(
            fresh, DATA[HALF:], offset=HALF, sent=pb.SentBytes(size_bytes=HALF, line_chain=WRONG[name])
        )
    assert await durable_bytes(fresh) == HALF


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("length", [0, 1, 31, 33, 64, 1_000_000])
async def test_ImportTranscript__a_hash_of_a_wrong_length_is_refused(
    service: Service, length: int, is_finished: bool
) -> None:
    fresh = await cut_at(service)
    if is_finished:
        await go_on(fresh, DATA)
    size = len(DATA) if is_finished else HALF
    sent = pb.SentBytes(size_bytes=size, line_chain=(sent_bytes(DATA[:size]).line_chain * 40_000)[:length])
    with refused(Reason.INVALID_REQUEST):
        await send(fresh, DATA[size:], offset=size, sent=sent)


@pytest.mark.parametrize("size_bytes", [-1, 0])
async def test_ImportTranscript__an_impossible_size_is_refused(service: Service, size_bytes: int) -> None:
    with refused(Reason.INVALID_REQUEST):
        await send(service.session(), DATA, sent=pb.SentBytes(size_bytes=size_bytes, line_chain=bytes(32)))


@pytest.mark.parametrize("size_bytes", [1, HALF - 1, HALF + 1, ENDS[6], 2**63 - 1])
async def test_ImportTranscript__another_size_than_stored_is_refused(
    service: Service, size_bytes: int
) -> None:
    fresh = await cut_at(service)
    sent = pb.SentBytes(size_bytes=size_bytes, line_chain=sent_bytes(DATA[:size_bytes]).line_chain)
    with refused(Reason.IMPORT_OFFSET_DIFFERS) as facts:
        await send(fresh, DATA[size_bytes:], offset=size_bytes, sent=sent)
    assert facts["durable_bytes"] == str(HALF)
    with refused(Reason.IMPORT_OFFSET_DIFFERS) as facts:
        await send(service.session(), DATA, sent=sent)
    assert facts["durable_bytes"] == "0"


@pytest.mark.parametrize("offset", [0, HALF - 1, HALF + 1])
async def test_ImportTranscript__bytes_at_another_offset_than_announced_are_refused(
    service: Service, offset: int
) -> None:
    fresh = await cut_at(service)
    with refused(Reason.IMPORT_OFFSET_DIFFERS) as facts:
        await send(fresh, DATA[offset:], offset=offset, sent=sent_bytes(DATA[:HALF]))
    assert facts["durable_bytes"] == str(HALF)
    assert (await go_on(fresh, DATA)).entry_count == len(ENDS)


async def test_ImportTranscript__a_stream_of_a_replaced_file_cannot_continue_the_new_one(
    service: Service,
) -> None:
    fresh = service.session()
    first, second = (numbered(700, mark, size=1000) for mark in ("a", "b"))
    assert len(first) == len(second)

    async def requests() -> AsyncIterator[pb.ImportTranscriptRequest]:
        yield pb.ImportTranscriptRequest(spec=pb.ImportSpec(session_id=fresh.session_id))
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(data=first))
        while await durable_bytes(fresh) != len(first):
            pass
        with refused(Reason.IMPORT_MALFORMED):
            await send(fresh, b"{\n", offset=len(first), sent=sent_bytes(first))
        await send(fresh, second, chunk_bytes=len(second), finish=False)
        assert await durable_bytes(fresh) == len(first)
        rest = file_of(message(700, content="of the first"))
        yield pb.ImportTranscriptRequest(chunk=pb.ImportChunk(offset=len(first), data=rest))
        yield pb.ImportTranscriptRequest(finish=pb.ImportFinish())

    with refused(Reason.IMPORT_OFFSET_DIFFERS):
        await send_requests(fresh, requests())
    await go_on(fresh, second)
    assert values(await exported(fresh)) == values(second)


async def test_ImportTranscript__a_failed_finish_stores_no_part_of_a_line(
    service: Service, superuser: Superuser
) -> None:
    fresh = await cut_at(service)
    await superuser.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'not now'; end $$;"
        "create trigger refuse before update on transcripts for each row"
        f" when (new.session_id = '{fresh.session_id}' and new.state = 'LIVE') execute function refuse()"
    )
    try:
        with refused(Reason.INTERNAL):
            await go_on(fresh, DATA.removesuffix(b"\n"))
    finally:
        await superuser.execute("drop trigger refuse on transcripts; drop function refuse()")
    assert await durable_bytes(fresh) == HALF
    grown = DATA + file_of(message(12))
    await send(fresh, grown[HALF:-2], offset=HALF, finish=False, sent=sent_bytes(grown[:HALF]))
    assert (await go_on(fresh, grown)).entry_count == len(ENDS) + 1
    assert values(await exported(fresh)) == values(grown)
