"""Rules for attachments, sets, uploads and garbage: values in, decisions or refusals out."""

from spawnmesh_attachment_blob.domain.items import Encoding, InlineItem, ValidFile
from spawnmesh_attachment_blob.domain.limits import AttachmentLimits
from spawnmesh_attachment_blob.domain.names import NameProblem, duplicate_key, name_problem
from spawnmesh_attachment_blob.domain.refusal import AttachmentReason, AttachmentRefused
from spawnmesh_attachment_blob.domain.validate import validate

__all__ = [
    "AttachmentLimits",
    "AttachmentReason",
    "AttachmentRefused",
    "Encoding",
    "InlineItem",
    "NameProblem",
    "ValidFile",
    "duplicate_key",
    "name_problem",
    "validate",
]
