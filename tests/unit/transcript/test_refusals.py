"""The errors of the transcript service: what a caller reads from them."""

from dataclasses import replace

import pytest
from spawnmesh_core.errors import FieldViolation, MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.domain.entries import EntryKind, Head, WriterClaim
from spawnmesh_transcript.domain.prompt_window import Offence, TakeoverCause
from spawnmesh_transcript.domain.refusals import (
    claim_lost,
    claim_of_another_run,
    client_with_claim,
    compacted_meanwhile,
    import_content_differs,
    import_malformed,
    import_offset_differs,
    is_being_written,
    not_configured,
    other_origin,
    request_id_reused,
    require_current,
    search_refused,
    session_takeover,
    stored_hash_differs,
    tenant_purged,
    tier_disabled,
    transcript_deleted,
    transcript_exists,
    unknown_tenant,
    unowned_append_not_allowed,
)

HEAD = Head("inc_1", 5, b"\x0a\xff", "run_1", 3)
HEAD_FACTS = {
    "incarnation": "inc_1",
    "seq": "5",
    "chain_hash": "0aff",
    "writer_run_id": "run_1",
    "writer_epoch": "3",
}


@pytest.mark.parametrize(
    ("error", "reason", "facts"),
    [
        (claim_lost(HEAD), Reason.WRITER_CLAIM_LOST, HEAD_FACTS),
        (
            session_takeover(Offence(4, EntryKind.NOTE, TakeoverCause.KIND), HEAD),
            Reason.SESSION_TAKEOVER,
            {"offending_seq": "4", "offending_kind": "NOTE", "cause": "KIND", **HEAD_FACTS},
        ),
        (
            session_takeover(Offence(4, None, TakeoverCause.SHRUNK), HEAD),
            Reason.SESSION_TAKEOVER,
            {"offending_seq": "4", "offending_kind": "", "cause": "SHRUNK", **HEAD_FACTS},
        ),
        (request_id_reused("k"), Reason.REQUEST_ID_REUSED, {"request_id": "k"}),
        (unowned_append_not_allowed("x"), Reason.UNOWNED_APPEND_NOT_ALLOWED, {}),
        (claim_of_another_run(), Reason.CALLER_NOT_ALLOWED, {}),
        (client_with_claim(), Reason.CALLER_NOT_ALLOWED, {}),
        (
            other_origin("ses_1", "ses_0"),
            Reason.ALREADY_EXISTS,
            {"session_id": "ses_1", "forked_from_session_id": "ses_0"},
        ),
        (transcript_exists("ses_1"), Reason.ALREADY_EXISTS, {"session_id": "ses_1"}),
        (transcript_deleted("ses_1"), Reason.TRANSCRIPT_DELETED, {"session_id": "ses_1"}),
        (tenant_purged(), Reason.UNKNOWN_TENANT, {}),
        (unknown_tenant(), Reason.UNKNOWN_TENANT, {}),
        (compacted_meanwhile(), Reason.CONFLICT, {}),
        (is_being_written(), Reason.CONFLICT, {}),
        (not_configured("hook service", "HOOK_TARGET"), Reason.DEPENDENCY_UNAVAILABLE, {}),
        (import_offset_differs(7), Reason.IMPORT_OFFSET_DIFFERS, {"durable_bytes": "7"}),
        (
            import_content_differs("ses_1", 7, "x"),
            Reason.IMPORT_CONTENT_DIFFERS,
            {"session_id": "ses_1", "durable_bytes": "7"},
        ),
        (search_refused("TOO_LONG", "x", limit=5), Reason.SEARCH_REFUSED, {"why": "TOO_LONG", "limit": "5"}),
        (stored_hash_differs("x"), Reason.STORED_HASH_DIFFERS, {}),
        (tier_disabled(), Reason.TIER_DISABLED, {}),
    ],
)
def test_error_has_its_reason_and_its_facts(error: MeshError, reason: Reason, facts: dict[str, str]) -> None:
    assert (error.reason, error.facts) == (reason, facts)


@pytest.mark.parametrize(
    ("lines", "begins", "facts"),
    [
        ([(3, "is no JSON")], "line 3 is no JSON", {"lines": "3"}),
        ([(3, "is no JSON"), (8, "is empty")], "line 3 is no JSON, and 1 more lines", {"lines": "3,8"}),
    ],
)
def test_malformed_lines_of_an_import_are_named(
    lines: list[tuple[int, str]], begins: str, facts: dict[str, str]
) -> None:
    error = import_malformed(lines)
    assert error.reason is Reason.IMPORT_MALFORMED
    assert error.message == begins
    assert error.violations == tuple(FieldViolation(f"line {number}", problem) for number, problem in lines)
    assert error.facts == facts


def test_claim_that_holds_the_transcript_is_current() -> None:
    require_current(WriterClaim("run_1", 3), HEAD)


@pytest.mark.parametrize(
    ("claim", "head"),
    [
        (WriterClaim("run_1", 2), HEAD),
        (WriterClaim("run_2", 3), HEAD),
        (WriterClaim("run_1", 3), replace(HEAD, writer_run_id="", writer_epoch=0)),
    ],
)
def test_claim_that_another_one_replaced_is_lost(claim: WriterClaim, head: Head) -> None:
    with pytest.raises(MeshError) as caught:
        require_current(claim, head)
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST
