"""DescribeFile: metadata and content of the file behind a reference, for those who may read it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from spawnmesh.transcript.v1 import file_service_pb2 as file_pb
from spawnmesh.transcript.v1 import search_service_pb2 as search_pb
from spawnmesh.transcript.v1.search_service_pb2_grpc import SearchServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.attachment_blob.fixtures import BlobService
from tests.support.serving import caller_at, shared_settings
from tests.support.transcript.bodies import assistant
from tests.support.transcript.fixtures import Service, refused
from tests.support.transcript.tier import (
    NO_TAIL,
    Tiered,
    answering,
    calling,
    image_block,
    long_text,
    stored,
)

KIB = 1024


async def test_DescribeFile__returns_the_metadata_of_a_file(tiered: Tiered) -> None:
    text = "line é\n" * 2_000
    file_id = await stored(tiered, text, path="/a")
    described = await tiered.describe(file_id)
    entry = (await tiered.session.entries())[2]
    assert (described.entry_id, described.seq, described.create_time) == (
        entry.entry_id,
        entry.seq,
        entry.create_time,
    )
    assert (described.file_id, described.session_id) == (file_id, tiered.session.session_id)
    assert (described.tool_name, described.about, described.mime_type) == ("exec", "path: /a", "text/plain")
    assert (described.size_bytes, described.line_count, described.block_index) == (
        len(text.encode()),
        2_000,
        0,
    )
    assert not described.HasField("content")


async def test_DescribeFile__reads_parts_of_a_long_text(tiered: Tiered) -> None:
    text = "".join(f"{number} ééé\n" for number in range(100_000))
    data = text.encode()
    file_id = await stored(tiered, text)

    start = (await tiered.describe(file_id, expand=True)).content
    assert (start.offset, start.truncated) == (0, True)
    assert start.data == data[: start.next_offset]
    assert 32 * KIB - 1 <= len(start.data) <= 32 * KIB

    far = (
        await tiered.describe(file_id, expand=True, bytes={"offset": 300_001, "length": 600 * KIB})
    ).content
    far.data.decode()
    assert data[far.offset : far.next_offset] == far.data
    assert (far.offset in (300_000, 300_001), far.truncated, 500 * KIB - 2 < len(far.data) <= 500 * KIB) == (
        True,
        True,
        True,
    )

    lines = (
        await tiered.describe(file_id, expand=True, lines={"first_line": 99_999, "line_count": 5})
    ).content
    assert (lines.data.decode(), lines.truncated) == ("99998 ééé\n99999 ééé\n", False)
    assert lines.next_offset == len(data)

    behind = (await tiered.describe(file_id, expand=True, bytes={"offset": 10**9})).content
    assert (behind.data, behind.offset, behind.truncated) == (b"", len(data), False)


async def test_DescribeFile__a_run_reads_its_own_files_and_those_of_its_descendants(tiered: Tiered) -> None:
    child = tiered.on(tiered.session.sibling())
    await child.session.create(child_of=tiered.session)
    file_id = await stored(child, long_text("a"))
    claim = await tiered.session.acquire(1)
    stranger = tiered.session.sibling()
    await stranger.create()
    assert (
        await child.describe(file_id, token=child.session.run_token(await child.session.acquire(2)))
    ).size_bytes == 10_000
    assert (
        await tiered.describe(file_id, token=tiered.session.run_token(claim))
    ).session_id == child.session.session_id
    with refused(Reason.NOT_FOUND) as facts:
        await tiered.describe(file_id, token=stranger.run_token(await stranger.acquire(1)))
    assert child.session.session_id not in str(facts)


async def test_DescribeFile__an_unknown_file_is_not_found(tiered: Tiered) -> None:
    file_id = await stored(tiered, long_text("a"))
    with refused(Reason.NOT_FOUND):
        await tiered.describe(new_id(IdKind.BLOB).replace("blb_", "file_"))
    for wrong in ("", "file_x", file_id.upper(), file_id.replace("file_", "blb_")):
        with refused(Reason.INVALID_REQUEST):
            await tiered.describe(wrong)
    await tiered.session.delete()
    with refused(Reason.NOT_FOUND):
        await tiered.describe(file_id)


async def test_DescribeFile__an_image_labelled_as_text_is_refused(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    image = image_block(bytes(range(128, 256)) * 80)
    image.image.mime_type = "text/plain"
    answer = answering("c1", "seen")
    answer.message.content.append(image)
    await tiered.session.append([calling("c1", "look", {}), answer, assistant("end")], claim=claim)
    [stubbed] = (await tiered.context(tail=NO_TAIL)).stubbed
    described = await tiered.describe(stubbed.file_ids[0], expand=True)
    assert (described.mime_type, described.line_count) == ("application/octet-stream", 0)
    assert described.content.data == image.image.data
    with refused(Reason.INVALID_REQUEST):
        await tiered.describe(stubbed.file_ids[0], expand=True, lines=file_pb.LineRange(first_line=1))


async def test_DescribeFile__lines_that_the_file_does_not_have_are_refused(tiered: Tiered) -> None:
    file_id = await stored(tiered, "line é\n" * 2_000, path="/a")
    last = (await tiered.describe(file_id, expand=True, lines={"first_line": 2_000})).content
    assert last.data.decode() == "line é\n"
    with pytest.raises(MeshError) as caught:
        await tiered.describe(file_id, expand=True, lines={"first_line": 2_001, "line_count": 5})
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message == "lines.first_line: the file has 2000 lines"


async def test_DescribeFile__the_text_of_a_result_has_the_lines_of_its_file(tiered: Tiered) -> None:
    """The built-in tools give their facts in a block before the text."""
    claim = await tiered.session.acquire(1)
    text = "".join(f"row {number} of the table\n" for number in range(1, 1_001))
    body = answering("c", '{"path": "a.csv", "truncated": false}', text)
    await tiered.session.append([calling("c", "read_file", {}), body, assistant("end")], claim=claim)
    context = await tiered.context(tail=NO_TAIL)
    [stubbed] = context.stubbed
    [file_id] = stubbed.file_ids
    assert context.entries[1].body.message.content[0].text.text.startswith('{"path"')
    lines = {"first_line": 700, "line_count": 2}
    part = (await tiered.describe(file_id, expand=True, lines=lines)).content
    assert part.data.decode() == "row 700 of the table\nrow 701 of the table\n"


async def test_DescribeFile__lines_are_for_texts(tiered: Tiered) -> None:
    claim = await tiered.session.acquire(1)
    body = answering("c")
    body.message.content.append(image_block(bytes(range(256)) * 40))
    await tiered.session.append([calling("c", "look", {}), body, assistant("end")], claim=claim)
    [stubbed] = (await tiered.context(tail=NO_TAIL)).stubbed
    with refused(Reason.INVALID_REQUEST):
        await tiered.describe(stubbed.file_ids[0], expand=True, lines={"first_line": 1})


async def test_SearchEntries__a_hit_names_the_file_and_the_byte_to_read(tiered: Tiered) -> None:
    text = f"{long_text('é')} the needle {long_text('b')}"
    file_id = await stored(tiered, text)
    request = search_pb.SearchEntriesRequest(session_id=tiered.session.session_id, words="needle")
    stub = SearchServiceStub(tiered.session.service.peer.channel)
    with use_token(tiered.session.client_token()):
        [hit] = (
            await tiered.session.service.peer.unary(stub.SearchEntries, request, timeout_seconds=60)
        ).hits
        assert hit.file_id == file_id
        read = await tiered.describe(file_id, expand=True, bytes={"offset": hit.byte_offset, "length": 6})
        assert read.content.data == b"needle"
        await tiered.set_tier(2, is_on=False)
        [hit] = (
            await tiered.session.service.peer.unary(stub.SearchEntries, request, timeout_seconds=60)
        ).hits
        assert hit.file_id == "", "nothing is a reference now"


async def test_metrics_count_how_often_files_are_read(
    tiered: Tiered, service: Service, blobs: BlobService, keys: Path
) -> None:
    file_id = await stored(tiered, long_text("a"))
    settings = TranscriptSettings(
        **shared_settings("transcript", keys),
        database_url=service.dsn.app,
        attachment_blob_target=blobs.target,
        metrics_listen="127.0.0.1:0",
    )
    async with start_process("transcript", settings) as process, open_service(process, settings) as server:
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with caller_at(f"127.0.0.1:{port}", "transcript") as peer:
            counted = tiered.on(replace(tiered.session, service=replace(service, peer=peer)))
            await counted.context(tail=NO_TAIL)
            await counted.describe(file_id)
            await counted.describe(file_id, expand=True, lines={"first_line": 1})
        exposed = await asyncio.to_thread(_exposed, process.metrics.port)
        await server.stop(None)
    drill_downs = (
        'spawnmesh_transcript_drill_downs_total{spawnmesh_caller_kind="client",'
        'spawnmesh_transcript_drill_down_part="%s"} 1.0'
    )
    assert {
        drill_downs % "none",
        drill_downs % "lines",
        "spawnmesh_transcript_stubbed_size_bytes_total 10000.0",
    } <= exposed


def _exposed(port: int | None) -> set[str]:
    return set(urlopen(f"http://127.0.0.1:{port}/metrics").read().decode().splitlines())
