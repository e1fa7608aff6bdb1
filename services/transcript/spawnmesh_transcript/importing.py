"""Takes a session file in, piece by piece; it is there whole, or not at all."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from spawnmesh.transcript.v1 import archive_service_pb2 as archive_pb
from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.line_chain import LineChain
from spawnmesh_postgres.database import Connection, Database

from spawnmesh_transcript import import_store, payload_store, store, tenant_store
from spawnmesh_transcript.bodies import serialize
from spawnmesh_transcript.deletion import delete_import_pages
from spawnmesh_transcript.domain.entries import EntryKind, Label, NewEntry
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.refusals import (
    import_malformed,
    import_offset_differs,
    tenant_purged,
    transcript_deleted,
    transcript_exists,
    unknown_tenant,
)
from spawnmesh_transcript.import_beginning import Beginning
from spawnmesh_transcript.import_lines import MAX_MALFORMED, File, read_lines, without_lost_labels
from spawnmesh_transcript.import_store import Progress
from spawnmesh_transcript.import_threads import ImportThreads
from spawnmesh_transcript.line_bodies import MAX_LINE_BYTES
from spawnmesh_transcript.long_lines import LONG_BYTES
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.store import Key

SERVICE = "transcript"
"""Who writes the marks on what is off the branch that a file ends on; exports leave them out."""

_BATCH_BYTES = 512 * 1024
_SOME_LINES = re.compile(rb"(?:[^\n]*\n){1,5000}")
"""Of the shortest lines, empty ones among them, a batch has no more: each costs something by itself."""

_MARKS_AT_ONCE = 500
_STALE_SECONDS = 86_400.0
_DUPLICATE = "has the id of an earlier entry"


async def import_transcript(
    database: Database,
    payloads: Payloads,
    threads: ImportThreads,
    key: Key,
    sent: archive_pb.SentBytes | None,
    requests: AsyncIterator[archive_pb.ImportTranscriptRequest],
) -> Progress:
    """Takes the messages behind the spec, of bytes that are behind what was `sent`. How far the import is when they end.

    Raises IMPORT_MALFORMED once nothing of the import is left, IMPORT_OFFSET_DIFFERS, IMPORT_CONTENT_DIFFERS, ALREADY_EXISTS, UNKNOWN_TENANT,
    TRANSCRIPT_DELETED, DEADLINE_EXCEEDED for a long line that does not come, and NOT_FOUND for an import that is removed meanwhile.
    """
    progress, policy = await _begin(database, key)
    beginning = Beginning(threads, key, progress, sent)
    taking = Taking(database, payloads, threads, key, policy, _file(key, progress, policy))
    waiting = bytearray()
    async with threads.long_lines.open_place(key.tenant_id) as place:
        async for request in requests:
            match request.WhichOneof("message"):
                case "chunk":
                    if request.chunk.offset != beginning.end:
                        raise beginning.misplaced(request.chunk.offset, progress.byte_count)
                    data = await beginning.behind(request.chunk.data)
                    waiting += data
                    if len(waiting) > MAX_LINE_BYTES or (len(waiting) >= _BATCH_BYTES and b"\n" in data):
                        async with place.come():
                            progress = await _take(taking, progress, waiting)
                    if len(waiting) > LONG_BYTES:
                        await place.take()
                case "finish":
                    beginning.finish()
                    if progress.state != "COMPLETE":
                        async with place.come():
                            progress = await _take(taking, progress, waiting, is_last=True)
                        payloads.put_waiting(key)
                    return progress
                case _:
                    raise invalid("spec", "comes once")
        if progress.state != "COMPLETE":
            async with place.come():
                progress = await _take(taking, progress, waiting)
        return progress


def _file(key: Key, progress: Progress, policy: TenantPolicy) -> File:
    return File(key.session_id, progress.incarnation, policy.mask_secrets, policy.token_vocabulary)


@dataclass(frozen=True, slots=True)
class Taking:
    """What one call takes pieces of a file with."""

    database: Database
    payloads: Payloads
    threads: ImportThreads
    key: Key
    policy: TenantPolicy
    file: File


async def _begin(database: Database, key: Key) -> tuple[Progress, TenantPolicy]:
    async with database.transaction(key.tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, key.tenant_id):
            raise tenant_purged()
        policy = await tenant_store.find_policy(connection, key.tenant_id)
        if policy is None:
            raise unknown_tenant()
        if not await import_store.begin(connection, key, incarnation=new_id(IdKind.INCARNATION)):
            if await store.is_deleted(connection, key):
                raise transcript_deleted(key.session_id)
            if await import_store.read(connection, key) is None:
                raise transcript_exists(key.session_id)
        progress = await import_store.read(connection, key)
    if progress is None:
        raise not_found("import", key.session_id)
    is_unknown = progress.state == "IMPORTING" and not progress.is_comparable
    if progress.state == "ABORTED" or is_unknown:
        await _abort(database, key, progress.incarnation)
        return await _begin(database, key)
    return progress, policy


async def _take(taking: Taking, progress: Progress, waiting: bytearray, *, is_last: bool = False) -> Progress:
    """Stores the whole lines among the bytes that wait, some at a time, and takes them from these.

    The last line of a file may lack its end. With it the import is complete, in the same transaction: nobody goes on within a line.
    """
    end = len(waiting) if is_last else waiting.rfind(b"\n") + 1
    if len(waiting) - end > MAX_LINE_BYTES:
        await _abort(taking.database, taking.key, progress.incarnation)
        number = progress.line_count + waiting.count(b"\n") + 1
        raise import_malformed(((number, f"is longer than {MAX_LINE_BYTES} bytes"),))
    is_more = end > 0 or is_last
    while is_more:
        data = _some_lines(waiting, end)
        del waiting[: len(data)]
        end -= len(data)
        is_more = end > 0
        progress = await _take_lines(taking, progress, data, is_last=is_last and not is_more)
    return progress


def _some_lines(waiting: bytearray, end: int) -> bytes:
    """The first of the lines up to there: at least one, however long it is, and with the last what lacks its end."""
    limit = min(end, _BATCH_BYTES)
    found = _SOME_LINES.match(waiting, 0, limit)
    size = found.end() if found else waiting.find(b"\n", limit, end) + 1
    if limit == end and waiting.find(b"\n", size, end) < 0:
        size = end
    with memoryview(waiting) as view:  # A slice of the bytes themselves would be a copy by itself.
        return bytes(view[: size or end])


async def _take_lines(taking: Taking, progress: Progress, data: bytes, *, is_last: bool) -> Progress:
    """Stores whole lines.

    Large payloads get their rows with their entries, as they do when they are appended; they are put once the import is there to be read.
    """
    database, key = taking.database, taking.key
    reached, entries = await taking.threads.run(key.tenant_id, partial(_read, taking.file, data, progress))
    if is_last and reached.line_count == 0:
        reached = replace(reached, malformed=((1, "is missing; a file begins with its header"),))
    made = [entry for _, entry in entries]
    stubs = await taking.payloads.stubs_of(key, made, taking.policy)
    async with database.transaction(key.tenant_id) as connection:
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if data and policy.settings_version != taking.policy.settings_version:
            raise import_offset_differs(progress.byte_count)  # The next call makes them under those that hold.
        await store.keep_index_order(connection)
        if not await import_store.hold(connection, key, progress.incarnation):
            raise await _lost(connection, key)
        known = await import_store.known_entry_ids(connection, key, [entry.entry_id for _, entry in entries])
        twice = tuple((number, _DUPLICATE) for number, entry in entries if entry.entry_id in known)
        reached = replace(reached, malformed=tuple(sorted((*reached.malformed, *twice))))
        if not await import_store.advance(connection, key, progress, reached):
            raise await _lost(connection, key)
        if not reached.malformed and entries:
            targets = [entry.target_entry_id for entry in made if entry.label]
            known = await import_store.known_entry_ids(connection, key, targets) if targets else set()
            made = without_lost_labels(made, known)
            head = await store.write_entries(connection, key, made, service=SERVICE)
            if stubs:
                await payload_store.insert_stubs(connection, key, stubs, first_seq=head.seq - len(made) + 1)
        if is_last and not reached.malformed:
            reached = await _complete(connection, taking, reached)
    if len(reached.malformed) >= (1 if is_last else MAX_MALFORMED):
        await _abort(database, key, progress.incarnation)
        raise import_malformed(reached.malformed[:MAX_MALFORMED])
    return reached


def _read(file: File, data: bytes, progress: Progress) -> tuple[Progress, list[tuple[int, NewEntry]]]:
    """The entries of the next bytes with the numbers of their lines, and how far the import is behind them."""
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    reached, entries = read_lines(file, lines, progress)
    chain = LineChain(progress.line_chain)
    chain.update(data)
    byte_count = progress.byte_count + len(data)
    return replace(reached, byte_count=byte_count, line_chain=chain.value, chained_byte_count=byte_count), entries


async def _lost(connection: Connection, key: Key) -> Exception:
    if await store.is_deleted(connection, key):
        return transcript_deleted(key.session_id)
    now = await import_store.read(connection, key)
    return import_offset_differs(now.byte_count) if now else not_found("import", key.session_id)


async def _complete(connection: Connection, taking: Taking, progress: Progress) -> Progress:
    """Needs `keep_index_order`, and `import_store.hold`."""
    key = taking.key
    if progress.is_branched:
        leaf_entry_id = progress.leaf_entry_id
        if not await import_store.known_entry_ids(connection, key, [leaf_entry_id]):  # It would leave nothing to read.
            leaf_entry_id = taking.file.entry_id(progress.newest_source_id)
        await _mark_other_branches(connection, key, leaf_entry_id)
    if not await import_store.complete(connection, key, progress):
        raise await _lost(connection, key)
    return replace(progress, state="COMPLETE")


async def _mark_other_branches(connection: Connection, key: Key, leaf_entry_id: str) -> None:
    off = await import_store.entries_off_branch(connection, key, leaf_entry_id)
    for start in range(0, len(off), _MARKS_AT_ONCE):
        marks = [_mark(entry_id) for entry_id in off[start : start + _MARKS_AT_ONCE]]
        await store.write_entries(connection, key, marks, service=SERVICE)


def _mark(entry_id: str) -> NewEntry:
    label = pb.Label(entry_id=entry_id, kind=pb.LABEL_KIND_SUPERSEDED)
    return NewEntry(
        kind=EntryKind.LABEL,
        body=serialize(pb.EntryBody(label=label)),
        label=Label.SUPERSEDED,
        target_entry_id=entry_id,
    )


async def _abort(database: Database, key: Key, incarnation: str, *, age_seconds: float = 0) -> None:
    """Nothing is left of this import, if nobody has gone on with it for so long, and nothing happens to one that came after it.

    Whoever is cut off here has the next one do it.
    """
    async with database.transaction(key.tenant_id) as connection:
        if not await import_store.hold(connection, key, incarnation):
            return
        if not await import_store.abort(connection, key, age_seconds=age_seconds):
            return
    await delete_import_pages(database, key, incarnation)
    async with database.transaction(key.tenant_id) as connection:
        if await import_store.hold(connection, key, incarnation):
            await import_store.forget(connection, key, incarnation)


async def remove_stale_imports(database: Database, tenant_id: str) -> None:
    """Removes the imports that nobody has gone on with for a day, and those whose removal was cut off."""
    async with database.transaction(tenant_id) as connection:
        if not await tenant_store.enter_tenant(connection, tenant_id):
            return
        stale = [
            (key, incarnation or await _with_transcript(connection, key))
            for key, incarnation in await import_store.stale(connection, tenant_id, age_seconds=_STALE_SECONDS)
        ]
    for key, incarnation in stale:
        await _abort(database, key, incarnation, age_seconds=_STALE_SECONDS)


async def _with_transcript(connection: Connection, key: Key) -> str:
    """Gives an import that lost its transcript another one to be removed with; the incarnation of that."""
    incarnation = new_id(IdKind.INCARNATION)
    await import_store.begin(connection, key, incarnation=incarnation)
    return incarnation
