"""Mask secrets in entries, for tenants whose policy says so."""

from spawnmesh.transcript.v1 import entry_pb2 as pb
from spawnmesh_core.secrets import mask_text
from spawnmesh_runtime.masking import mask_message, masked_json


def masked_body(body: pb.EntryBody, path: str) -> pb.EntryBody:
    """Return a copy with secrets masked; thinking, images and ids are unchanged.

    Raises INVALID_REQUEST for a field that should be JSON and is not.
    """
    masked = pb.EntryBody()
    masked.CopyFrom(body)
    match masked.WhichOneof("kind"):
        case "message":
            mask_message(masked.message, f"{path}.message")
        case "mirror":
            mask_message(masked.mirror.message, f"{path}.mirror.message")
            masked.mirror.destination = mask_text(masked.mirror.destination)
        case "system_note":
            masked.system_note.text = mask_text(masked.system_note.text)
        case "compaction":
            masked.compaction.summary = mask_text(masked.compaction.summary)
        case "branch_summary":
            masked.branch_summary.summary = mask_text(masked.branch_summary.summary)
        case "custom":
            masked.custom.data_json = masked_json(masked.custom.data_json, f"{path}.custom.data_json")
        case "opaque":
            masked.opaque.entry_json = masked_json(masked.opaque.entry_json, f"{path}.opaque.entry_json")
    return masked
