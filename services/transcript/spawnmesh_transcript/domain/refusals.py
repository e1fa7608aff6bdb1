"""Why the service says no."""

from collections.abc import Mapping, Sequence

from spawnmesh_core.errors import Fact, FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.domain.entries import Head
from spawnmesh_transcript.domain.window import Offence


def claim_lost(head: Head) -> MeshError:
    """The claim is not the current one; the facts say where the transcript stands and who writes it."""
    return MeshError(
        Reason.WRITER_CLAIM_LOST,
        "this claim does not hold the transcript; stop writing in this run's name",
        facts=_facts(head),
    )


def session_takeover(offence: Offence, head: Head) -> MeshError:
    """The prompt window did not hold; the facts say where and why, and where the transcript stands."""
    return MeshError(
        Reason.SESSION_TAKEOVER,
        f"entry {offence.seq} is not the run's own: discard what the model answered, and read the transcript again",
        facts={
            "offending_seq": offence.seq,
            "offending_kind": offence.kind or "",
            "cause": offence.cause,
            **_facts(head),
        },
    )


def key_reused(idempotency_key: str) -> MeshError:
    """The key names an append of other entries."""
    return MeshError(
        Reason.IDEMPOTENCY_KEY_REUSED,
        "the idempotency key was used before with other entries; take a new key for new entries",
        facts={"idempotency_key": idempotency_key},
    )


def unowned_append_not_allowed(why: str) -> MeshError:
    """An append without a claim by someone who needs one, or of an entry that needs one."""
    return MeshError(Reason.UNOWNED_APPEND_NOT_ALLOWED, why)


def claim_of_another_run() -> MeshError:
    """A run acts with a claim that is not its own."""
    return MeshError(Reason.CALLER_NOT_ALLOWED, "a run writes with its own claim: the run and epoch of its token")


def client_with_claim() -> MeshError:
    """A client acts with a claim."""
    return MeshError(Reason.CALLER_NOT_ALLOWED, "only runs and services write under a claim")


def other_origin(session_id: str, forked_from_session_id: str) -> MeshError:
    """The session has a transcript, and it began otherwise."""
    return MeshError(
        Reason.ALREADY_EXISTS,
        f"session {session_id} has a transcript of another origin",
        facts={"session_id": session_id, "forked_from_session_id": forked_from_session_id},
    )


def transcript_deleted(session_id: str) -> MeshError:
    """The session had a transcript, or lost it before it was created."""
    return MeshError(
        Reason.TRANSCRIPT_DELETED,
        f"the transcript of session {session_id} was deleted and is not created again",
        facts={"session_id": session_id},
    )


def tenant_purged() -> MeshError:
    """Nothing begins in a tenant that is going away."""
    return MeshError(Reason.UNKNOWN_TENANT, "the tenant is being removed")


def unknown_tenant() -> MeshError:
    """Who can sign for a tenant that nobody created brings nothing into it: no one would ever remove that."""
    return MeshError(Reason.UNKNOWN_TENANT, "there is no such tenant; an operator creates it")


def being_purged() -> MeshError:
    """A tenant cannot be made ready while it is going away."""
    return MeshError(Reason.CONFLICT, "the tenant is being removed; make it ready again once that is done")


def import_malformed(lines: Sequence[tuple[int, str]]) -> MeshError:
    """Lines of a session file that cannot be read."""
    return MeshError(
        Reason.IMPORT_MALFORMED,
        f"line {lines[0][0]} {lines[0][1]}" + (f", and {len(lines) - 1} more lines" if len(lines) > 1 else ""),
        violations=tuple(FieldViolation(f"line {number}", problem) for number, problem in lines),
        facts={"lines": ",".join(str(number) for number, _ in lines)},
    )


def import_offset_differs(durable_bytes: int) -> MeshError:
    """A chunk that does not begin where the import goes on."""
    return MeshError(
        Reason.IMPORT_OFFSET_DIFFERS,
        f"the import goes on at byte {durable_bytes}",
        facts={"durable_bytes": durable_bytes},
    )


def import_content_differs(session_id: str, durable_bytes: int, why: str) -> MeshError:
    """What came is not what the import has."""
    return MeshError(
        Reason.IMPORT_CONTENT_DIFFERS,
        f"the import of session {session_id} has {durable_bytes} bytes: {why}",
        facts={"session_id": session_id, "durable_bytes": durable_bytes},
    )


def transcript_exists(session_id: str) -> MeshError:
    """The session has a transcript that no import made."""
    return MeshError(Reason.ALREADY_EXISTS, f"session {session_id} has a transcript", facts={"session_id": session_id})


def search_refused(why: str, message: str, **facts: int) -> MeshError:
    """A search that will not be run as it was asked for."""
    return MeshError(Reason.SEARCH_REFUSED, message, facts={"why": why, **facts})


def stored_hash_differs(what: str) -> MeshError:
    """What is stored is not what was."""
    return MeshError(Reason.STORED_HASH_DIFFERS, what)


def tier_disabled() -> MeshError:
    """Large payloads of a tenant that does not want it are not moved out of the database."""
    return MeshError(
        Reason.TIER_DISABLED, "the tenant has stub_large_tool_payloads off: set it, or ask for a dry run or a revert"
    )


def compacted_meanwhile() -> MeshError:
    """Another compaction was first."""
    return MeshError(Reason.CONFLICT, "another compaction of this transcript was first; ask again if it is still due")


def is_being_written() -> MeshError:
    """A client wants to compact what a run writes."""
    return MeshError(Reason.CONFLICT, "a run writes this transcript; ask again once it has ended, or let it ask")


def run_without_claim() -> MeshError:
    """A run asks for what takes its claim."""
    return MeshError(Reason.CALLER_NOT_ALLOWED, "a run compacts with its claim")


def _facts(head: Head) -> Mapping[str, Fact]:
    return {
        "incarnation": head.incarnation,
        "seq": head.seq,
        "chain_hash": head.chain_hash.hex(),
        "writer_run_id": head.writer_run_id,
        "writer_epoch": head.writer_epoch,
    }
