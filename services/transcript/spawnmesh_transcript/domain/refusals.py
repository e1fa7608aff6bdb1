"""Why the service says no."""

from collections.abc import Mapping

from spawnmesh_core.errors import Fact, MeshError
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


def _facts(head: Head) -> Mapping[str, Fact]:
    return {
        "incarnation": head.incarnation,
        "seq": head.seq,
        "chain_hash": head.chain_hash.hex(),
        "writer_run_id": head.writer_run_id,
        "writer_epoch": head.writer_epoch,
    }
