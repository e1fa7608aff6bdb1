"""Appends entries, made ready under the settings that hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.append_queue import AppendQueue
from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.policy import TenantPolicy
from spawnmesh_transcript.domain.refusals import claim_lost, key_reused, unowned_append_not_allowed
from spawnmesh_transcript.domain.writers import Writer, may_append
from spawnmesh_transcript.payloads import Payloads
from spawnmesh_transcript.prepare import prepare
from spawnmesh_transcript.store import Append, AppendOutcome, Key
from spawnmesh_transcript.tenants import Policies

_TRIES = 5  # Settings change by hand.


@dataclass(frozen=True, slots=True)
class Appended:
    """Where entries landed: ids in order, the seq of the first, and the head right behind them."""

    entry_ids: tuple[str, ...]
    first_seq: int
    head: Head
    is_replay: bool


async def append_entries(
    queue: AppendQueue,
    payloads: Payloads,
    policies: Policies,
    key: Key,
    bodies: Sequence[pb.EntryBody],
    *,
    idempotency_key: str,
    writer: Writer,
) -> Appended:
    """Appends all entries or none.

    Raises INVALID_REQUEST and ATTACHMENT_CONTENT_IS_MARKER for what cannot be stored, NOT_FOUND for the transcript or an entry that one refers
    to, IDEMPOTENCY_KEY_REUSED, WRITER_CLAIM_LOST, and UNOWNED_APPEND_NOT_ALLOWED.
    """
    for _ in range(_TRIES):
        policy = policies.of(key.tenant_id)
        done = await _append(queue, payloads, key, bodies, policy, idempotency_key=idempotency_key, writer=writer)
        if done.policy is None:
            return _appended(done, key, idempotency_key)
        await policies.refresh(key.tenant_id)
    raise MeshError(Reason.CONFLICT, "the tenant's settings keep changing; append again")


async def _append(
    queue: AppendQueue,
    payloads: Payloads,
    key: Key,
    bodies: Sequence[pb.EntryBody],
    policy: TenantPolicy,
    *,
    idempotency_key: str,
    writer: Writer,
) -> AppendOutcome:
    prepared = await prepare(bodies, policy)
    for entry in prepared.entries:
        if not may_append(writer, entry):
            raise unowned_append_not_allowed(f"this writer may not append an entry of kind {entry.kind} this way")
    append = Append(key, prepared.entries, idempotency_key, prepared.content_hash, writer, policy.settings_version)
    stubs = await payloads.stubs_of(key, prepared.entries, policy)
    return await (payloads.append(append, stubs) if stubs else queue.append(append))


def _appended(done: AppendOutcome, key: Key, idempotency_key: str) -> Appended:
    match done.outcome, done.head:
        case "APPENDED" | "REPLAYED", Head() as head:
            return Appended(done.entry_ids, done.first_seq, head, is_replay=done.outcome == "REPLAYED")
        case "CLAIM_LOST", Head() as head:
            raise claim_lost(head)
        case "KEY_REUSED", _:
            raise key_reused(idempotency_key)
        case "TARGET_NOT_FOUND", _:
            raise not_found("entry", done.missing_entry_id)
        case _:
            raise not_found("transcript", key.session_id)
