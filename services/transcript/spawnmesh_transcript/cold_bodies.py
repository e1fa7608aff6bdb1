"""Bodies of entries without their payloads, and with them again. Work for the processor only."""

from collections.abc import Iterable, Mapping

from spawnmesh.transcript.v1 import entry_pb2 as pb

from spawnmesh_transcript.bodies import serialize


def without_payloads(body: bytes, block_indexes: Iterable[int]) -> bytes:
    """The body with nothing in these texts and images of its message."""
    return with_payloads(body, dict.fromkeys(block_indexes, b""))


def with_payloads(body: bytes, payloads: Mapping[int, bytes]) -> bytes:
    """The body with these texts and images in its message, by their blocks. Raises ValueError for a block that is neither, or is not there."""
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
