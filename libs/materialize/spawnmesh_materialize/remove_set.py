"""Takes a set out of a workspace."""

import os
from contextlib import suppress
from pathlib import Path

from spawnmesh_materialize.descend import open_private_directory_at, opened_below
from spawnmesh_materialize.erase import erase_at
from spawnmesh_materialize.errors import MaterializeError, MaterializeReason, os_errors_typed
from spawnmesh_materialize.layout import HOME, passing_name, passing_prefix
from spawnmesh_materialize.manifest import check_set_id


def remove(workspace: Path, set_id: str) -> None:
    """Deletes the set and whatever an interrupted `materialize` of it left behind; nothing there is success.

    The set vanishes in one step before its files are deleted one by one. Parent directories go too once they are empty.
    No symlink is followed: one in the set's place or inside it is deleted itself, one on the way there is refused.
    Raises MaterializeError; what is left then goes with the next call.
    """
    check_set_id(set_id)
    try:
        with opened_below(workspace, HOME, open_private_directory_at) as home_fd, os_errors_typed():
            with suppress(FileNotFoundError):
                os.rename(set_id, passing_name(set_id), src_dir_fd=home_fd, dst_dir_fd=home_fd)
            for name in os.listdir(home_fd):
                if name.startswith(passing_prefix(set_id)):
                    erase_at(home_fd, name)
            os.fsync(home_fd)
        prune_home(workspace)
    except MaterializeError as error:
        if error.reason is not MaterializeReason.NOT_FOUND:
            raise


def prune_home(workspace: Path) -> None:
    """Removes the directories that hold sets, deepest first, as far as they are empty. Raises MaterializeError."""
    for depth in range(len(HOME), 0, -1):
        with opened_below(workspace, HOME[: depth - 1]) as parent_fd, suppress(OSError):
            os.rmdir(HOME[depth - 1], dir_fd=parent_fd)
