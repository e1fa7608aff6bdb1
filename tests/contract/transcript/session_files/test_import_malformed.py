"""ImportTranscript: malformed lines are reported, and nothing of their file is stored."""

from typing import Any

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.operations.session_files.line_reader import MAX_LINE_BYTES, MAX_VALUES

from tests.support.transcript.files import (
    HEADER,
    file_of,
    message,
    send,
)
from tests.support.transcript.fixtures import (
    Service,
    refused,
)
from tests.support.transcript.tables import Superuser, rows_of

MALFORMED: dict[str, tuple[list[Any], str]] = {
    "no json": ([HEADER, message(1), "{nope", message(2)], "3"),
    "a list": ([HEADER, "[1]"], "2"),
    "several": ([HEADER, "x", message(1), "y", "z"], "2,4,5"),
    "no header": ([message(1)], "1"),
    "a second header": ([HEADER, {**HEADER, "id": "s-2"}], "2"),
    "no id": ([HEADER, {"type": "message", "message": {}}], "2"),
    "no type": ([HEADER, {"id": "m1"}], "2"),
    "an id twice": ([HEADER, message(1), message(2), message(1)], "4"),
    "a parent that is no id": ([HEADER, {**message(1), "parentId": 7}], "2"),
    "an id without end": ([HEADER, {**message(1), "id": "m" * 1025}, message(2)], "2"),
    "a parent's id without end": ([HEADER, message(1), {**message(2), "parentId": "m" * 1025}], "3"),
    "a message without one": ([HEADER, {"type": "message", "id": "m1"}], "2"),
    "nothing": ([], "1"),
}


@pytest.mark.parametrize("name", list(MALFORMED))
async def test_ImportTranscript__malformed_lines_are_reported_and_nothing_is_stored(
    service: Service, superuser: Superuser, name: str
) -> None:
    fresh = service.session()
    lines, expected = MALFORMED[name]
    with refused(Reason.IMPORT_MALFORMED) as facts:
        await send(fresh, file_of(*lines))
    assert facts["lines"] == expected
    assert await rows_of(superuser, fresh.tenant_id) == {"tenants": 1, "tenant_work": 1}
    await send(fresh, file_of(HEADER, message(1), message(2)))
    assert len(await fresh.entries()) == 3


async def test_ImportTranscript__a_line_of_too_many_values_is_reported_with_its_number(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    many = "0," * MAX_VALUES
    hostile = f'{{"type":"something_new","id":"m2","parentId":"m1","list":[{many}0]}}'
    with refused(Reason.IMPORT_MALFORMED) as facts:
        await send(fresh, file_of(HEADER, message(1), hostile), chunk_bytes=500_000)
    assert facts["lines"] == "3"
    assert await rows_of(superuser, fresh.tenant_id) == {"tenants": 1, "tenant_work": 1}
    await send(fresh, file_of(HEADER, message(1), message(2, content=f"[{many}]")), chunk_bytes=500_000)
    assert len(await fresh.entries()) == 3


async def test_ImportTranscript__a_malformed_line_after_many_stored_lines(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    lines = [HEADER, *(message(number, content="x" * 3000) for number in range(1, 600))]
    for twice in ("{", message(5)):
        with refused(Reason.IMPORT_MALFORMED) as facts:
            await send(fresh, file_of(*lines, twice), chunk_bytes=100_000)
        assert facts["lines"] == "601"
        assert await rows_of(superuser, fresh.tenant_id) == {"tenants": 1, "tenant_work": 1}


async def test_ImportTranscript__invalid_utf8_and_endless_lines_are_malformed(
    service: Service, superuser: Superuser
) -> None:
    fresh = service.session()
    with refused(Reason.IMPORT_MALFORMED) as facts:
        await send(fresh, file_of(HEADER) + b'{"a":"\xff"}\n')
    assert facts["lines"] == "2"
    with refused(Reason.IMPORT_MALFORMED) as facts:
        await send(fresh, file_of(HEADER, message(1)) + b"x" * (MAX_LINE_BYTES + 1), chunk_bytes=1_000_000)
    assert facts["lines"] == "3"
    assert await rows_of(superuser, fresh.tenant_id) == {"tenants": 1, "tenant_work": 1}
