"""How many uploads are received at the same time."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_attachment_blob.admission import Admission, Bounds

_WAIT_SECONDS = 45.0  # Longer than a sender may be silent, so that who waits gets the place of one that is.
_AGAIN_SECONDS = 5.0
_SOON_SECONDS = 1.0
_TURN_SECONDS = 10.0  # For less, streams would be begun and ended over and over.
_WAITING = 32  # Each with a chunk of up to 2 MiB.
_LOOKS = 16
_LOOKS_WAITING = 4096
IsOver = Callable[[], bool]
_ALL_TAKEN = "as many uploads are received as may be at the same time; call again later"


class UploadPlaces:
    """Half of the places, or one, is the most that one tenant has: whose senders dawdle leaves room for others.

    Nobody keeps one for the length of a large file while others wait.
    """

    def __init__(self, max_streams: int) -> None:
        self._looks = Admission(Bounds("uploads", _ALL_TAKEN, _LOOKS, _LOOKS_WAITING, _WAIT_SECONDS, _AGAIN_SECONDS))
        self._places = Admission(Bounds("uploads", _ALL_TAKEN, max_streams, _WAITING, _WAIT_SECONDS, _AGAIN_SECONDS))

    def look(self, tenant_id: str) -> AbstractAsyncContextManager[None]:
        """Lets who announced a file show, in the block, whether bytes follow. Few at a time do: until they are read, bytes stay with senders."""
        return self._looks.taken(tenant_id)

    @asynccontextmanager
    async def taken(self, tenant_id: str) -> AsyncIterator[IsOver]:
        """One place, for the block, and whether it is somebody else's turn by now. Raises POOL_EXHAUSTED where none was free for long."""
        async with self._places.taken(tenant_id):
            end = monotonic_seconds() + _TURN_SECONDS
            yield lambda: monotonic_seconds() >= end and self._places.is_wanted(tenant_id)


def turn_over() -> MeshError:
    """The refusal to take more of a large file now. What came is durable."""
    return MeshError(
        Reason.POOL_EXHAUSTED,
        "others wait for the place of this upload; go on with another stream from where the upload is durable",
        retry_after_seconds=_SOON_SECONDS,
        facts={"pool": "uploads"},
    )
