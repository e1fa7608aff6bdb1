"""The memory that processes hold, as /proc shows it to this process."""

import functools
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

_KIB = 1024
_FIELD = re.compile(rb"^(RssAnon|RssShmem|Pss_Anon):\s+(\d+) kB", re.MULTILINE)
_SYSTEM_V = b"/SYSV"

File = tuple[int, int, bool]
"""Device and inode, and whether it is a segment of System V, which have numbers of their own."""


@dataclass(slots=True)
class Held:
    """The memory and the deleted files of some processes.

    What two processes share counts once. A file without a name is memory if it is of the kernel's
    own file system (MAP_SHARED, memfd_create, shmget), and takes space on the disk otherwise.
    """

    private: dict[int, int] = field(default_factory=dict)
    """Anonymous memory by process. Pages that a process shares since a fork count for each."""
    hidden: int = 0
    """Shared memory of processes whose files this process may not see."""
    files: dict[File, int] = field(default_factory=dict)

    def memory_bytes(self) -> int:
        """Return the bytes of memory."""
        shared = sum(size for (device, _, _), size in self.files.items() if device == _memory_device())
        return sum(self.private.values()) + self.hidden + shared

    def deleted_bytes(self, device: int) -> int:
        """Return the bytes of files without a name on the disk."""
        return sum(size for (of, _, _), size in self.files.items() if of == device)


def held_by(pids: Iterable[int], disk: int, limit_bytes: int, go_on: Callable[[], object]) -> Held:
    """Return what the processes hold. May block.

    `disk` is the device on which deleted files count. Above the limit, private memory that
    processes share since a fork counts once for all, which takes longer to find out. `go_on` is
    called at each process, descriptor and mapping, and may raise.
    """
    held = Held()
    devices = (_memory_device(), disk)
    for pid in pids:
        go_on()
        with suppress(FileNotFoundError, ProcessLookupError):
            facts = _facts(pid, "status")
            held.private[pid] = facts.get(b"RssAnon", 0)
            try:
                _add_open_files(pid, devices, held.files, go_on)
                _add_mapped_files(pid, devices, held.files, go_on)
            except PermissionError:
                held.hidden += facts.get(b"RssShmem", 0)
    if held.memory_bytes() > limit_bytes:
        for pid in held.private:
            go_on()
            with suppress(OSError):
                held.private[pid] = _facts(pid, "smaps_rollup").get(b"Pss_Anon", held.private[pid])
    return held


def _facts(pid: int, name: str) -> dict[bytes, int]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return {fact: int(size) * _KIB for fact, size in _FIELD.findall(file.read())}


def _add_open_files(
    pid: int, devices: tuple[int, int], files: dict[File, int], go_on: Callable[[], object]
) -> None:
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            go_on()
            with suppress(FileNotFoundError):
                _add(os.stat(entry.path), devices, files)


def _add_mapped_files(
    pid: int, devices: tuple[int, int], files: dict[File, int], go_on: Callable[[], object]
) -> None:
    """Add mapped files. Where the kernel does not show the size of one, its mappings count."""
    names = {f"{os.major(one):02x}:{os.minor(one):02x}".encode(): one for one in devices}
    sizes: dict[File, int] = {}
    with open(f"/proc/{pid}/maps", "rb") as lines:
        for line in lines:
            go_on()
            span, _, _, device, inode, *path = line.split(None, 5)
            if device not in names or not path or not path[0].rstrip().endswith(b"(deleted)"):
                continue
            try:
                _add(os.stat(f"/proc/{pid}/map_files/{span.decode()}"), devices, files, path[0])
            except OSError:
                begin, end = (int(one, 16) for one in span.split(b"-"))
                key = (names[device], int(inode), path[0].startswith(_SYSTEM_V))
                sizes[key] = sizes.get(key, 0) + end - begin
    for key, size in sizes.items():
        files[key] = max(files.get(key, 0), size)


def _add(stat: os.stat_result, devices: tuple[int, int], files: dict[File, int], path: bytes = b"") -> None:
    if stat.st_dev in devices and (stat.st_nlink == 0 or stat.st_dev == devices[0]):
        key = (stat.st_dev, stat.st_ino, path.startswith(_SYSTEM_V))
        files[key] = max(files.get(key, 0), stat.st_blocks * 512)


@functools.cache
def _memory_device() -> int:
    """Return the device of the kernel's file system of shared memory; -1 on another system."""
    if not hasattr(os, "memfd_create"):
        return -1
    fd = os.memfd_create("device")
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
