"""Types of the functions that fixtures return."""

from collections.abc import Callable
from pathlib import Path

from spawnmesh_materialize import FileSource

MakeSource = Callable[..., FileSource]
"""Makes a FileSource of a name and its content, with chunks of three bytes."""
Snapshot = Callable[[Path], dict[str, bytes | str]]
"""Reads the contents of files and the targets of symlinks below a directory."""
