"""The refusals of this service that are not about the state of a set."""

from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.domain import AttachmentReason, AttachmentRefused

_MESSAGE = {
    AttachmentReason.DISABLED: "attachments are switched off for this tenant",
    AttachmentReason.FILE_COUNT_EXCEEDED: "there are more files than the tenant may hand over at once",
    AttachmentReason.INVALID_NAME: "a file's name is not portable; choose another",
    AttachmentReason.DUPLICATE_NAME: "two files have the same name, or names that some systems take for the same",
    AttachmentReason.INVALID_ENCODING: "a file's encoding is neither UTF8 nor BASE64, or its text is not valid Unicode",
    AttachmentReason.INVALID_BASE64_OR_TOO_LARGE: "a file is not canonical standard base64, or larger than the tenant's limit",
    AttachmentReason.FILE_BYTES_EXCEEDED: "a file is larger than the tenant's limit",
    AttachmentReason.TOTAL_BYTES_EXCEEDED: "all files together are larger than the tenant's limit",
}


def items_refused(refused: AttachmentRefused) -> MeshError:
    """The refusal of a list of items: the same reason and facts, with a text for people."""
    return MeshError(Reason[refused.reason.value], _MESSAGE[refused.reason], facts=refused.facts)


def content_is_marker(index: int = 0) -> MeshError:
    """The refusal of an item whose content is what a transcript shows in place of an attachment."""
    return MeshError(
        Reason.ATTACHMENT_CONTENT_IS_MARKER,
        "a file's content is the marker of a redacted attachment; hand over the content itself",
        facts={"index": index},
    )


def unknown_tenant() -> MeshError:
    """The refusal for a tenant that was not made ready."""
    return MeshError(Reason.UNKNOWN_TENANT, "this tenant has not been made ready for attachments; create the tenant")


def being_purged() -> MeshError:
    """The refusal for a tenant that is being removed."""
    return MeshError(
        Reason.CONFLICT, "this tenant is being removed; call again when that is done", retry_after_seconds=1.0
    )


def urls_disabled() -> MeshError:
    """The refusal for a tenant whose policy gives no download URLs."""
    return MeshError(Reason.DOWNLOAD_URLS_DISABLED, "download URLs are switched off for this tenant; use ReadFile")
