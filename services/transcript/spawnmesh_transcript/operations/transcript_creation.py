"""Create a transcript with its header, and with copies of another transcript's messages if it is a
fork.
"""

from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import Connection, Database
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_transcript.clients.blob_store import BlobStore
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.entries import EntryKind, Head, NewEntry
from spawnmesh_transcript.domain.refusals import other_origin, tenant_purged, transcript_deleted
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.writers import Writer
from spawnmesh_transcript.operations.bodies.well_formed import serialize
from spawnmesh_transcript.operations.fork_copy import Fork, copy_messages
from spawnmesh_transcript.operations.payload_uploader import PayloadUploader
from spawnmesh_transcript.operations.stub_creation import create_stubs_of_fork
from spawnmesh_transcript.store import appends as append_store
from spawnmesh_transcript.store import tenants as tenant_store
from spawnmesh_transcript.store import transcripts as transcript_store


@dataclass(frozen=True, slots=True)
class NewTranscript:
    """A transcript to create, and the service that creates it, empty for a client."""

    key: Key
    incarnation: str
    parent_session_id: str
    fork: Fork | None
    service: str

    @property
    def forked_from_session_id(self) -> str:
        return self.fork.source_session_id if self.fork else ""

    def header(self) -> NewEntry:
        """Return the first entry."""
        header = entry_pb.Header(session_id=self.key.session_id, incarnation=self.incarnation)
        if self.fork:
            header.forked_from_session_id = self.forked_from_session_id
        return NewEntry(kind=EntryKind.HEADER, body=serialize(entry_pb.EntryBody(header=header)))


async def create(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    uploader: PayloadUploader,
    new: NewTranscript,
) -> Head:
    """Create the transcript and return its head; if it exists, return the head that it has.

    Raises NOT_FOUND, ALREADY_EXISTS, TRANSCRIPT_DELETED, UNKNOWN_TENANT, CONFLICT, and what
    `CpuWorkers.run` raises.
    """
    if new.fork:
        return await _create_fork(database, blobs, workers, uploader, new, new.fork)
    return await _create_empty(database, new)


async def create_with_entries(database: Database, new: NewTranscript, append: Append) -> Head | None:
    """Create a transcript that is no fork with its first entries, in one transaction; return its
    head.

    Returns None if the entries were not appended: the transcript exists, something refuses it, or
    the settings changed. Then it may exist without them.
    """
    create = transcript_store.begin_statements(
        new.key,
        incarnation=new.incarnation,
        parent_session_id=new.parent_session_id,
        service=new.service,
        header=new.header().body,
    )
    return await append_store.append_with_creation(database, append, new.incarnation, create)


async def _create_empty(database: Database, new: NewTranscript) -> Head:
    header = new.header()
    head = await transcript_store.begin_transcript(
        database,
        new.key,
        incarnation=new.incarnation,
        parent_session_id=new.parent_session_id,
        service=new.service,
        header=header.body,
    )
    if head is not None:
        return head
    async with database.transaction(new.key.tenant_id) as connection:
        existing = await _insert(connection, new)
        return existing or await append_store.write_entries(
            connection, new.key, [header], Writer(service=new.service)
        )


async def _create_fork(
    database: Database,
    blobs: BlobStore,
    workers: CpuWorkers,
    uploader: PayloadUploader,
    new: NewTranscript,
    fork: Fork,
) -> Head:
    key = new.key
    copies = await copy_messages(database, blobs, workers, key, fork)
    async with database.transaction(key.tenant_id) as connection:
        existing = await _insert(connection, new)
        if existing:
            return existing
        policy = await tenant_store.read_policy(connection, key.tenant_id)
        if copies is None:  # The session had an import, which was aborted meanwhile.
            raise MeshError(Reason.CONFLICT, "the transcript was just removed; create it again")
        if policy.mask_secrets and not copies.is_masked:
            raise MeshError(
                Reason.CONFLICT, "the tenant's settings just changed; create the transcript again"
            )
        entries = [new.header(), *copies.entries]
        stubs = await create_stubs_of_fork(blobs, entries, policy)
        writer = Writer(service=new.service)
        head = await append_store.write_entries(connection, key, entries, writer, stubs)
    if any(stub.files for stub in stubs):
        uploader.start(key)
    return head


async def _insert(connection: Connection, new: NewTranscript) -> Head | None:
    """Insert the transcript without entries, or return the head of the one that exists.

    Raises ALREADY_EXISTS, TRANSCRIPT_DELETED and UNKNOWN_TENANT.
    """
    key, origin = new.key, new.forked_from_session_id
    if not await tenant_store.enter_tenant(connection, key.tenant_id):
        raise tenant_purged()
    if await transcript_store.insert_transcript(
        connection,
        key,
        incarnation=new.incarnation,
        forked_from_session_id=origin,
        parent_session_id=new.parent_session_id,
    ):
        return None
    if await transcript_store.is_deleted(connection, key):
        raise transcript_deleted(key.session_id)
    existing = await transcript_store.get_transcript(connection, key)
    if existing.forked_from_session_id != origin:
        raise other_origin(key.session_id, existing.forked_from_session_id)
    return existing.head
