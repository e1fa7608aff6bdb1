"""Make glibc return large blocks to the system as soon as they are freed.

Upstream: documented in mallopt(3) under M_MMAP_THRESHOLD as the dynamic mmap threshold.

Behaviour: glibc allocates blocks of 128 KiB and more with mmap and unmaps them when they are freed.
Each freed block raises this threshold to its own size, up to 32 MiB. After the first large message,
later ones come from the heap, and the gaps that they leave stay in the memory of the process.

Why here: messages have up to 16 MiB, and the memory limits of the pods are small.

Remove it when the default of glibc is a fixed threshold, or when the images set
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ for every process, also on a developer's machine.
"""

import ctypes

_LARGE_BYTES = 1024 * 1024
_KEPT_FREE_BYTES = 4 * 1024 * 1024

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def fix_malloc_thresholds() -> None:
    """Fix the mmap threshold at 1 MiB and the trim threshold at 4 MiB.

    Does nothing if the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)
