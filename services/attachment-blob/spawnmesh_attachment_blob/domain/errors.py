"""Errors of this service that do not concern the state of a set or of an upload."""

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused

_MESSAGE = {
    AttachmentReason.DISABLED: "attachments are disabled for this tenant",
    AttachmentReason.FILE_COUNT_EXCEEDED: "there are more files than the tenant's limit for one set",
    AttachmentReason.INVALID_NAME: "a file's name is not portable; choose another name",
    AttachmentReason.DUPLICATE_NAME: "two files have the same name, or names that some file systems"
    " treat as the same",
    AttachmentReason.INVALID_ENCODING: "a file's encoding is neither UTF8 nor BASE64, or its text is"
    " not valid Unicode",
    AttachmentReason.INVALID_BASE64_OR_TOO_LARGE: "a file is not canonical standard base64, or it is"
    " larger than the tenant's limit",
    AttachmentReason.FILE_BYTES_EXCEEDED: "a file is larger than the tenant's limit",
    AttachmentReason.TOTAL_BYTES_EXCEEDED: "all files together are larger than the tenant's limit",
}


def items_refused(refused: AttachmentRefused) -> MeshError:
    """Build the error for refused items, with the same reason and facts and a text for people."""
    return MeshError(Reason[refused.reason.value], _MESSAGE[refused.reason], facts=refused.facts)


def content_is_marker(index: int = 0) -> MeshError:
    """Build the error for a file that is the marker of a redacted attachment."""
    return MeshError(
        Reason.ATTACHMENT_CONTENT_IS_MARKER,
        "a file's content is the marker of a redacted attachment; send the content itself",
        facts={"index": index},
    )


def unknown_tenant() -> MeshError:
    """Build the error for a tenant that was not prepared."""
    return MeshError(Reason.UNKNOWN_TENANT, "this tenant is not prepared for attachments; create the tenant")


def urls_disabled() -> MeshError:
    """Build the error for a tenant whose policy disables download URLs."""
    return MeshError(
        Reason.DOWNLOAD_URLS_DISABLED, "download URLs are disabled for this tenant; use ReadFile"
    )


def stored_hash_differs(sha256: str) -> MeshError:
    """Build the error for an object that is missing or whose bytes differ from the stored hash."""
    return MeshError(
        Reason.STORED_HASH_DIFFERS,
        "the stored bytes are not the bytes that the sender sent; restore them from a backup",
        facts={"sha256": sha256},
    )
