"""A collection does not visit the objects of the start of a process; without the
workaround it does.
"""

import subprocess
import sys

PROGRAM = """
import gc
from spawnmesh_runtime.workarounds.gc_freeze import freeze_startup_objects

startup_object = [[]]
gc.collect()
if {frozen}:
    freeze_startup_objects()
print(any(one is startup_object for one in gc.get_objects()))
"""


def is_visited(*, frozen: bool) -> bool:
    """Return whether a tracked startup object is in a generation that full collections visit."""
    program = PROGRAM.format(frozen=frozen)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=True)
    return ended.stdout == b"True\n"


def test_the_workaround_is_still_needed() -> None:
    assert is_visited(frozen=False), "remove workarounds/gc_freeze.py"


def test_a_frozen_object_is_not_visited() -> None:
    assert not is_visited(frozen=True)
