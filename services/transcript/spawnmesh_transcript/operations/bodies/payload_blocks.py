"""Remove payloads from bodies, and put them back. CPU work only."""

from collections.abc import Iterable, Mapping

from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.operations.bodies.well_formed import serialize


def without_payloads(body: bytes, block_indexes: Iterable[int]) -> bytes:
    """Return the body with these texts and images of its message emptied."""
    return with_payloads(body, dict.fromkeys(block_indexes, b""))


def with_payloads(body: bytes, payloads: Mapping[int, bytes]) -> bytes:
    """Return the body with these texts and images set, by block.

    Raises ValueError for a block that is neither, or does not exist.
    """
    entry = pb.EntryBody.FromString(body)
    content = entry.message.content
    for index, payload in payloads.items():
        kind = content[index].WhichOneof("block") if index < len(content) else None
        match kind:
            case "text":
                content[index].text.text = payload.decode()
            case "image":
                content[index].image.data = payload
            case _:
                raise ValueError(f"block {index} is {kind or 'missing'} and has no payload")
    return serialize(entry)
