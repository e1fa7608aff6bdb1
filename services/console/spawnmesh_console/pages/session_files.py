"""Bytes of a session that are no page: attached and published files, pictures, and long texts.

None of them is ever a page of the console: a picture is shown if its bytes are one, a text is plain
text, and everything else is stored by the browser. All are sandboxed.
"""

from collections.abc import AsyncGenerator, Mapping
from urllib.parse import quote

from spawnmesh_core.errors import not_found
from starlette.responses import Response, StreamingResponse

from spawnmesh_console.clients.output_sets import output_file
from spawnmesh_console.clients.session_files import file_pieces
from spawnmesh_console.clients.shown_entry import shown_entry
from spawnmesh_console.clients.transcript_pages import one_entry
from spawnmesh_console.domain.previews import MAX_PREVIEW_BYTES, image_type
from spawnmesh_console.domain.shown_text import harmless, without_unseen
from spawnmesh_console.web.visit import Visit

_CONFINED = {"content-security-policy": "default-src 'none'; sandbox"}
_STORED = "application/octet-stream"


async def download_file(visit: Visit) -> Response:
    """Send an attached file to be stored; with `view`, a picture to be shown."""
    session = await visit.mesh.session(visit.path_part("session_id"))
    place = visit.request.path_params["place"]
    if session.receipt is None or not 0 <= place < len(session.receipt.files):
        raise not_found("file", str(place))
    file = session.receipt.files[place]
    return await _sent(visit, session.receipt.set_id, file.name, file.size_bytes)


async def download_published(visit: Visit) -> Response:
    """Send a file that a run has published, as an attached one."""
    path = visit.request.path_params
    file = await output_file(visit.mesh, path["session_id"], path["set_id"], path["place"])
    return await _sent(visit, path["set_id"], file.name, file.size_bytes)


async def show_image(visit: Visit) -> Response:
    """Send a picture of an entry; bytes that are none are sent to be stored."""
    path = visit.request.path_params
    entry = await one_entry(visit.mesh, path["session_id"], path["seq"])
    blocks = entry.body.message.content or entry.body.mirror.message.content
    if not 0 <= path["place"] < len(blocks) or not blocks[path["place"]].HasField("image"):
        raise not_found("picture", str(path["place"]))
    data = blocks[path["place"]].image.data
    shown = image_type(data)
    return Response(data, headers=_headers("picture", shown), media_type=shown or _STORED)


async def show_text(visit: Visit) -> Response:
    """Send all texts of an entry as plain text, with signs for what would be unseen."""
    path = visit.request.path_params
    shown = shown_entry(await one_entry(visit.mesh, path["session_id"], path["seq"]))
    text = "\n\n".join(block.text for block in shown.blocks if block.text) if shown is not None else ""
    return Response(harmless(text), headers=_CONFINED, media_type="text/plain; charset=utf-8")


async def _sent(visit: Visit, set_id: str, name: str, size_bytes: int) -> Response:
    pieces = file_pieces(visit.mesh, set_id, name)
    first = await anext(pieces, b"")
    shown = image_type(first) if visit.text("view") and size_bytes <= MAX_PREVIEW_BYTES else None
    headers = {**_headers(name, shown), "content-length": str(size_bytes)}
    return StreamingResponse(_joined(first, pieces), headers=headers, media_type=shown or _STORED)


def _headers(name: str, shown: str | None) -> Mapping[str, str]:
    stored_name = quote(without_unseen(name) or "file", safe="")
    disposition = "inline" if shown else f"attachment; filename*=UTF-8''{stored_name}"
    return {**_CONFINED, "content-disposition": disposition}


async def _joined(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        await rest.aclose()
