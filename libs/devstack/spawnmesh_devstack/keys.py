"""The signing keys of a mesh on this machine."""

from pathlib import Path

from spawnmesh_runtime import key_files

from spawnmesh_devstack.failures import StackError

ISSUERS = key_files.ISSUERS


def make_keys(directory: Path) -> Path:
    """Makes what is missing of the keys and `jwks.json`, whose path it gives. Raises StackError for a key file that cannot be used."""
    try:
        return key_files.make_keys(directory)
    except key_files.KeyUnusable as error:
        raise StackError(str(error)) from error
