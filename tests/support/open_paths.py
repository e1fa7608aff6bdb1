"""The files and directories that this process has open."""

from contextlib import suppress
from pathlib import Path


def open_paths_below(directory: Path) -> list[Path]:
    """Return the path of each open descriptor below the directory. Others come and go with the
    threads of other tests' servers.
    """
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # Another thread has closed it.
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(directory)]
