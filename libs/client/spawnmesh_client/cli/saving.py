"""What is told when a file cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spawnmesh_core.reasons import Reason

from spawnmesh_client.whereabouts import LocalRefusal
from spawnmesh_client.whole_files import BeingWritten


@contextmanager
def saving(place: Path) -> Iterator[None]:
    """A block that writes a file, or files into a directory. Raises LocalRefusal where it fails for what is at the place."""
    try:
        yield
    except FileExistsError as error:
        raise LocalRefusal(Reason.ALREADY_EXISTS, f"{error}; --force overwrites it") from None
    except BeingWritten as error:
        raise LocalRefusal(Reason.CONFLICT, f"{error}; try again when it has ended") from None
    except OSError as error:
        raise LocalRefusal(Reason.INVALID_REQUEST, f"{place} cannot be written: {error.strerror or error}") from None
