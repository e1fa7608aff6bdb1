"""A service is imported without collections and without rich; without the workaround with both."""

import subprocess
import sys

import pytest

COSTS = ["rich", "collections", "visits"]
PROGRAM = """
import gc
import sys
from contextlib import nullcontext
from spawnmesh_runtime.workarounds.startup_imports import startup_imports

collections = []
gc.callbacks.append(lambda phase, _info: collections.append(phase))
with {block}():
    collections.clear()
    import structlog
    found = {{"rich": "rich.console" in sys.modules, "collections": bool(collections)}}
found["visits"] = any(one is structlog.__dict__ for one in gc.get_objects())
assert gc.isenabled()
import rich.console
print(found[{what!r}])
"""


def happens(what: str, block: str) -> bool:
    """Return whether the import of a package within the block has this cost."""
    program = PROGRAM.format(block=block, what=what)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=True)
    return ended.stdout == b"True\n"


@pytest.mark.parametrize("what", COSTS)
def test_the_workaround_is_still_needed(what: str) -> None:
    assert happens(what, "nullcontext"), "remove a part of workarounds/startup_imports.py"


@pytest.mark.parametrize("what", COSTS)
def test_an_import_within_the_block_has_no_such_cost(what: str) -> None:
    assert not happens(what, "startup_imports")
