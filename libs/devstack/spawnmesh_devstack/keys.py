"""The signing keys of a mesh on this machine."""

from pathlib import Path

from spawnmesh_runtime import key_files

from spawnmesh_devstack.failures import StackError

ISSUERS = key_files.ISSUERS


def make_keys(directory: Path) -> Path:
    """Create the missing keys and `jwks.json`, and return its path. Raises StackError for a key
    file that cannot be used.
    """
    try:
        return key_files.make_keys(directory)
    except key_files.KeyUnusable as error:
        raise StackError(str(error)) from error
