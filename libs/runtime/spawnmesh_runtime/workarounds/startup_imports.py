"""Import the modules of a process without two costs that its start does not need.

Garbage collections. Upstream: documented behaviour of CPython's `gc` module. Imports allocate many
objects, so that the collector visits the objects of all earlier imports again and again and finds
no garbage. Remove this part when the collector is incremental.

Rich. Upstream: structlog imports `rich` for its console output wherever it is installed, and an
image has it as a dependency of another package. Processes write JSON. Remove this part when
structlog imports `rich` only where it is used.

Why here: both together are a tenth to a fifth of the processor time of the imports, and all
processes of a mesh or of a node start at the same time.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RICH = "rich"


@contextmanager
def startup_imports() -> Iterator[None]:
    """Import within the block, and exclude the objects that exist at its end from collections.

    `rich` cannot be imported in the block, unless it was imported before.
    """
    without_rich = _RICH not in sys.modules
    was_enabled = gc.isenabled()
    gc.disable()
    if without_rich:
        # None lets the import system raise ModuleNotFoundError.
        sys.modules[_RICH] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if without_rich:
            del sys.modules[_RICH]
        if was_enabled:
            # Otherwise the first collection visits all objects of the imports.
            gc.freeze()
            gc.enable()
