"""How a process gives memory back to its system."""

import ctypes

_LARGE_BYTES = 1024 * 1024
_KEPT_FREE_BYTES = 4 * 1024 * 1024

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def give_large_blocks_back() -> None:
    """Blocks of a megabyte and more go back to the system as soon as they are free.

    glibc begins so too, but takes each block that is freed for a new measure, up to 32 MiB: after the first large message the next come from
    its heap, whose holes stay the process's. Does nothing where the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
