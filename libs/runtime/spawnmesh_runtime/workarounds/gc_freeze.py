"""Exclude the objects of the start of a process from garbage collection.

Upstream: documented behaviour of CPython's `gc` module.

Behaviour: each full collection visits every tracked object. A service keeps the objects of its
imports and of its composition root until it ends. Visiting them again and again delays its calls.

Why here: a collection blocks the event loop, and so every call of the process.

Remove it when full collections no longer visit long-lived objects, for example because the
collector is incremental.
"""

import gc


def freeze_startup_objects() -> None:
    """Exclude all objects that exist now from later collections.

    Call it once, when startup is complete.
    """
    gc.collect()
    gc.freeze()
