"""glibc returns a large block to the system when it is freed, also after an even larger
one was freed.
"""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

PROGRAM = """
import ctypes
from spawnmesh_runtime.workarounds.malloc_thresholds import fix_malloc_thresholds

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if {fixed}:
    fix_malloc_thresholds()
libc.free(libc.malloc(16 * 1024 * 1024))
before = libc.mallinfo2().hblks
block = libc.malloc(8 * 1024 * 1024)
print(libc.mallinfo2().hblks - before)
"""


def mapped_blocks(*, fixed: bool) -> int:
    """Return how many blocks of 8 MiB are mapped by one allocation after a block of 16
    MiB was freed.
    """
    program = PROGRAM.format(fixed=fixed)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=True)
    return int(ended.stdout)


def test_the_workaround_is_still_needed() -> None:
    assert mapped_blocks(fixed=False) == 0, "remove workarounds/malloc_thresholds.py"


def test_a_large_block_is_mapped() -> None:
    assert mapped_blocks(fixed=True) == 1
