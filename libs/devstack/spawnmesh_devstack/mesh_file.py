"""The file in the data directory by which other programs find a running mesh, and the lock that
excludes a second mesh.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spawnmesh_devstack.failures import StackError

_NAME = "mesh.json"


@contextmanager
def sole_use(data_dir: Path) -> Iterator[Path]:
    """Create the directory, lock it during the block, and return its absolute path.

    Raises StackError while another mesh runs on it, and if it cannot be created or written.
    """
    data_dir = data_dir.absolute()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise StackError(f"data cannot be kept in {data_dir}: it is a file and no directory") from None
    except OSError as error:
        raise StackError(f"data cannot be kept in {data_dir}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StackError(f"a mesh is running on {data_dir} already") from None
    (data_dir / _NAME).unlink(missing_ok=True)  # left by a mesh that was killed
    try:
        yield data_dir
    finally:
        (data_dir / _NAME).unlink(missing_ok=True)
        os.close(descriptor)


def write_mesh_file(
    data_dir: Path,
    *,
    targets: Mapping[str, str],
    gateway: str | None,
    keys: Path,
    traces: Path,
    pids: Mapping[str, int],
) -> None:
    """Write `mesh.json` (0600) atomically; `sole_use` removes it. `gateway` is null without one."""
    content = {
        "targets": dict(targets),
        "gateway": gateway,
        "keys": str(keys),
        "traces": str(traces),
        "pids": dict(pids),
    }
    half = data_dir / f".{_NAME}.new"
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream, indent=2)
    half.rename(data_dir / _NAME)
