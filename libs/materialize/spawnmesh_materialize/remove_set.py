"""Removes a set from a workspace."""

import os
from contextlib import suppress
from pathlib import Path

from spawnmesh_materialize.descend import open_private_directory_at, opened_below
from spawnmesh_materialize.erase import erase_at
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, os_errors_typed
from spawnmesh_materialize.layout import HOME, staging_name, staging_prefix
from spawnmesh_materialize.manifest import check_set_id


def remove(workspace: Path, set_id: str) -> None:
    """Delete the set, and the temporary directories of an interrupted `materialize`.

    - A missing set is no error.
    - The set is renamed away in one step before its files are deleted.
    - Parent directories are deleted once they are empty.
    - No symlink is followed. A symlink in place of the set or inside it is deleted. A symlink in
      the path to the set is refused.

    Raises MaterializeError. Call again to delete the rest.
    """
    check_set_id(set_id)
    try:
        with opened_below(workspace, HOME, open_private_directory_at) as home_fd, os_errors_typed():
            with suppress(FileNotFoundError):
                os.rename(set_id, staging_name(set_id), src_dir_fd=home_fd, dst_dir_fd=home_fd)
            for name in os.listdir(home_fd):
                if name.startswith(staging_prefix(set_id)):
                    erase_at(home_fd, name)
            os.fsync(home_fd)
        prune_home(workspace)
    except MaterializeError as error:
        if error.reason is not MaterializeReason.NOT_FOUND:
            raise


def prune_home(workspace: Path) -> None:
    """Delete the parent directories of sets, deepest first, while they are empty.

    Raises MaterializeError.
    """
    for depth in range(len(HOME), 0, -1):
        with opened_below(workspace, HOME[: depth - 1]) as parent_fd, suppress(OSError):
            os.rmdir(HOME[depth - 1], dir_fd=parent_fd)
