"""Refusals for files that cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spawnmesh_client.atomic_files import WriteInProgress
from spawnmesh_core.reasons import Reason

from spawnmesh_command.endpoints import LocalRefusal


@contextmanager
def reporting_write_errors(place: Path) -> Iterator[None]:
    """Raise a LocalRefusal if the block cannot write its file, or its files into a directory."""
    try:
        yield
    except FileExistsError as error:
        raise LocalRefusal(Reason.ALREADY_EXISTS, f"{error}; --force overwrites it") from None
    except WriteInProgress as error:
        raise LocalRefusal(Reason.CONFLICT, f"{error}; try again when it has ended") from None
    except OSError as error:
        raise LocalRefusal(
            Reason.INVALID_REQUEST, f"{place} cannot be written: {error.strerror or error}"
        ) from None
