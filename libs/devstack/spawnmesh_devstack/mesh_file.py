"""The files in the data directory by which other programs find a running mesh and its token, and
the lock that excludes a second mesh.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spawnmesh_devstack.console import SIGN_IN_NAME
from spawnmesh_devstack.failures import StackError

_NAME = "mesh.json"
_LOCK_NAME = ".lock"
_TOKEN_NAME = "client.token"  # noqa: S105 - a name, not a secret


@contextmanager
def sole_use(data_dir: Path) -> Iterator[Path]:
    """Create the directory, lock it during the block, and return its absolute path.

    Raises StackError while another mesh runs on it, and if it cannot be created or written.
    """
    data_dir = data_dir.absolute()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise StackError(f"data cannot be kept in {data_dir}: it is a file and no directory") from None
    except OSError as error:
        raise StackError(f"data cannot be kept in {data_dir}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StackError(f"a mesh is running on {data_dir} already") from None
    _remove_files(data_dir)  # left by a mesh that was killed
    try:
        yield data_dir
    finally:
        _remove_files(data_dir)
        os.close(descriptor)


def write_mesh_file(
    data_dir: Path,
    *,
    targets: Mapping[str, str],
    gateway: str | None,
    console: str | None,
    keys: Path,
    traces: Path,
    otlp: str,
    pids: Mapping[str, int],
) -> None:
    """Write `mesh.json` (0600) atomically; `sole_use` removes it. `gateway` and `console` are
    null without one.
    """
    content = {
        "targets": dict(targets),
        "gateway": gateway,
        "console": console,
        "keys": str(keys),
        "traces": str(traces),
        "otlp": otlp,
        "pids": dict(pids),
    }
    _write(data_dir / _NAME, json.dumps(content, indent=2))


def is_used(data_dir: Path) -> bool:
    """Return whether a mesh runs on the directory: a mesh that was killed leaves its files."""
    try:
        with (data_dir / _LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def write_token_file(data_dir: Path, token: str) -> None:
    """Write `client.token` (0600) atomically: the token that a client on this machine uses unless
    it is given another one. `sole_use` removes it.
    """
    _write(data_dir / _TOKEN_NAME, token)


def _remove_files(data_dir: Path) -> None:
    for name in (_NAME, _TOKEN_NAME, SIGN_IN_NAME):
        (data_dir / name).unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    half = file.with_name(f".{file.name}.new")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    half.rename(file)
