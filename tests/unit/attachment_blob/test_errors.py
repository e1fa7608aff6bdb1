"""The errors of the attachment-blob service: what a caller reads from them."""

import pytest
from spawnmesh_attachment_blob.domain.errors import (
    content_is_marker,
    items_refused,
    stored_hash_differs,
    unknown_tenant,
    urls_disabled,
)
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason


@pytest.mark.parametrize("reason", AttachmentReason)
def test_every_refusal_of_an_item_has_a_reason_on_the_wire_and_a_text(reason: AttachmentReason) -> None:
    error = items_refused(AttachmentRefused(reason, {"index": 2, "limit": 3}))
    assert error.reason is Reason[reason.value]
    assert error.facts == {"index": "2", "limit": "3"}
    assert error.message


@pytest.mark.parametrize(
    ("error", "reason", "facts", "retry_after_seconds"),
    [
        (content_is_marker(3), Reason.ATTACHMENT_CONTENT_IS_MARKER, {"index": "3"}, None),
        (content_is_marker(), Reason.ATTACHMENT_CONTENT_IS_MARKER, {"index": "0"}, None),
        (unknown_tenant(), Reason.UNKNOWN_TENANT, {}, None),
        (urls_disabled(), Reason.DOWNLOAD_URLS_DISABLED, {}, None),
        (stored_hash_differs("ab"), Reason.STORED_HASH_DIFFERS, {"sha256": "ab"}, None),
    ],
)
def test_error_has_its_reason_its_facts_and_when_to_call_again(
    error: MeshError, reason: Reason, facts: dict[str, str], retry_after_seconds: float | None
) -> None:
    assert (error.reason, error.facts) == (reason, facts)
    assert error.retry_after_seconds == retry_after_seconds


def test_refusal_says_its_reason_and_its_facts() -> None:
    refused = AttachmentRefused(AttachmentReason.DUPLICATE_NAME, {"index": 2})
    assert str(refused) == "ATTACHMENTS_DUPLICATE_NAME index=2"
