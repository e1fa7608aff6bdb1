"""Writes an attachment set into a workspace without following any symlink.

All functions are synchronous: an async caller runs them in a thread. Linux only.
"""

from spawnmesh_materialize.errors import MaterializeError, MaterializeReason
from spawnmesh_materialize.manifest import FileRecord, FileSource
from spawnmesh_materialize.remove_set import remove
from spawnmesh_materialize.safe_open import (
    DirectoryEntry,
    FileKind,
    list_directory,
    open_for_reading,
    open_for_writing,
)
from spawnmesh_materialize.write_set import Materialized, materialize

__all__ = [
    "DirectoryEntry",
    "FileKind",
    "FileRecord",
    "FileSource",
    "MaterializeError",
    "MaterializeReason",
    "Materialized",
    "list_directory",
    "materialize",
    "open_for_reading",
    "open_for_writing",
    "remove",
]
