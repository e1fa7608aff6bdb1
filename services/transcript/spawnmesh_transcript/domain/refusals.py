"""The errors by which the service refuses a call."""

from collections.abc import Mapping, Sequence

from spawnmesh_core.errors import Fact, FieldViolation, MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_transcript.domain.entries import Head, WriterClaim
from spawnmesh_transcript.domain.prompt_window import Offence
from spawnmesh_transcript.domain.writers import is_current


def claim_lost(head: Head) -> MeshError:
    """Return the error of a claim that is not current, with the head and its writer as facts."""
    return MeshError(
        Reason.WRITER_CLAIM_LOST,
        "this claim does not hold the transcript; stop writing under it",
        facts=_facts(head),
    )


def require_current(claim: WriterClaim, head: Head) -> None:
    """Raise WRITER_CLAIM_LOST unless the claim is the one that holds the transcript."""
    if not is_current(claim, head):
        raise claim_lost(head)


def session_takeover(offence: Offence, head: Head) -> MeshError:
    """Return the error of a prompt window that did not hold, with the offending entry and the head
    as facts.
    """
    return MeshError(
        Reason.SESSION_TAKEOVER,
        f"entry {offence.seq} is not the run's own: "
        "discard what the model answered, and read the transcript again",
        facts={
            "offending_seq": offence.seq,
            "offending_kind": offence.kind or "",
            "cause": offence.cause,
            **_facts(head),
        },
    )


def request_id_reused(request_id: str) -> MeshError:
    """Return the error of a request_id that named an append of other entries."""
    return MeshError(
        Reason.REQUEST_ID_REUSED,
        "the request_id was used before with other entries; take a new one for new entries",
        facts={"request_id": request_id},
    )


def unowned_append_not_allowed(why: str) -> MeshError:
    """Return the error of an append without a claim by a caller, or of an entry, that needs one."""
    return MeshError(Reason.UNOWNED_APPEND_NOT_ALLOWED, why)


def claim_of_another_run() -> MeshError:
    """Return the error of a run with a claim that is not its own."""
    return MeshError(
        Reason.CALLER_NOT_ALLOWED, "a run writes with its own claim: the run and epoch of its token"
    )


def client_with_claim() -> MeshError:
    """Return the error of a client with a claim."""
    return MeshError(Reason.CALLER_NOT_ALLOWED, "only runs and services write under a claim")


def other_origin(session_id: str, forked_from_session_id: str) -> MeshError:
    """Return the error of a session whose transcript has another origin."""
    return MeshError(
        Reason.ALREADY_EXISTS,
        f"session {session_id} has a transcript of another origin",
        facts={"session_id": session_id, "forked_from_session_id": forked_from_session_id},
    )


def fork_seq_beyond_end(seq: int, last_seq: int) -> MeshError:
    """Return the error of a fork at an entry that does not exist yet."""
    return MeshError(
        Reason.FORK_SEQ_REFUSED,
        f"the session cannot be forked at {seq}: its last entry is {last_seq}",
        facts={"seq": seq, "last_seq": last_seq},
    )


def fork_splits_call(seq: int, tool_call_id: str) -> MeshError:
    """Return the error of a fork between a call of a tool and its result."""
    return MeshError(
        Reason.FORK_SEQ_REFUSED,
        f"the session cannot be forked at {seq}: the result of the call {tool_call_id} comes after it; fork"
        " before the call, or after all its results",
        facts={"seq": seq, "tool_call_id": tool_call_id},
    )


def transcript_deleted(session_id: str) -> MeshError:
    """Return the error of a transcript that was deleted, also before it was created."""
    return MeshError(
        Reason.TRANSCRIPT_DELETED,
        f"the transcript of session {session_id} was deleted and is not created again",
        facts={"session_id": session_id},
    )


def tenant_purged() -> MeshError:
    """Return the error of a call that would start something in a tenant that is being purged."""
    return MeshError(Reason.UNKNOWN_TENANT, "the tenant is being removed")


def unknown_tenant() -> MeshError:
    """Return the error of an import into a tenant that was never prepared.

    Its rows would never be removed.
    """
    return MeshError(Reason.UNKNOWN_TENANT, "there is no such tenant; an operator creates it")


def not_configured(name: str, setting: str) -> MeshError:
    """Return the error of a call that needs a service whose target is not set."""
    return MeshError(
        Reason.DEPENDENCY_UNAVAILABLE,
        f"this service has no {name}: an operator sets TRANSCRIPT_{setting}",
    )


def import_malformed(lines: Sequence[tuple[int, str]]) -> MeshError:
    """Return the error of lines of a session file that cannot be read."""
    return MeshError(
        Reason.IMPORT_MALFORMED,
        f"line {lines[0][0]} {lines[0][1]}"
        + (f", and {len(lines) - 1} more lines" if len(lines) > 1 else ""),
        violations=tuple(FieldViolation(f"line {number}", problem) for number, problem in lines),
        facts={"lines": ",".join(str(number) for number, _ in lines)},
    )


def import_offset_differs(durable_bytes: int) -> MeshError:
    """Return the error of a chunk that does not begin where the import resumes."""
    return MeshError(
        Reason.IMPORT_OFFSET_DIFFERS,
        f"the import resumes at byte {durable_bytes}: send the chunk that begins there",
        facts={"durable_bytes": durable_bytes},
    )


def import_content_differs(session_id: str, durable_bytes: int, why: str) -> MeshError:
    """Return the error of bytes that differ from those that the import has."""
    return MeshError(
        Reason.IMPORT_CONTENT_DIFFERS,
        f"the import of session {session_id} has {durable_bytes} bytes: {why}",
        facts={"session_id": session_id, "durable_bytes": durable_bytes},
    )


def transcript_exists(session_id: str) -> MeshError:
    """Return the error of a session whose transcript no import made."""
    return MeshError(
        Reason.ALREADY_EXISTS, f"session {session_id} has a transcript", facts={"session_id": session_id}
    )


def search_refused(why: str, message: str, **facts: int) -> MeshError:
    """Return the error of a search that the service will not run."""
    return MeshError(Reason.SEARCH_REFUSED, message, facts={"why": why, **facts})


def still_indexing(indexed_seq: int, head_seq: int) -> MeshError:
    """Return the error of a search that came before the words of its transcript are indexed."""
    return MeshError(
        Reason.DEPENDENCY_UNAVAILABLE,
        f"the words of entries 1 to {indexed_seq} of {head_seq} are indexed, and the others are being "
        "indexed for this search: call again in a moment",
        retry_after_seconds=0.5,
        facts={"dependency": "search index", "indexed_seq": indexed_seq, "head_seq": head_seq},
    )


def stored_hash_differs(what: str) -> MeshError:
    """Return the error of stored bytes that have changed."""
    return MeshError(Reason.STORED_HASH_DIFFERS, what)


def tier_disabled() -> MeshError:
    """Return the error of a tenant that does not want its large payloads moved."""
    return MeshError(
        Reason.TIER_DISABLED,
        "the tenant has stub_large_tool_payloads off: set it, or request a dry run or a revert",
    )


def compacted_meanwhile() -> MeshError:
    """Return the error of a compaction that another one has overtaken."""
    return MeshError(
        Reason.CONFLICT, "another compaction of this transcript was first; compact again if it is still due"
    )


def is_being_written() -> MeshError:
    """Return the error of a client that wants to compact what a run writes."""
    return MeshError(
        Reason.CONFLICT,
        "a run writes this transcript; compact it once the run has ended, or let the run compact it",
    )


def _facts(head: Head) -> Mapping[str, Fact]:
    return {
        "incarnation": head.incarnation,
        "seq": head.seq,
        "chain_hash": head.chain_hash.hex(),
        "writer_run_id": head.writer_run_id,
        "writer_epoch": head.writer_epoch,
    }
