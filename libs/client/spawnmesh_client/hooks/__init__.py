"""Write a plugin: mark functions with `@hook`, serve them with `spawnmesh hooks serve`, test
with `FakeDispatch`.
"""

from spawnmesh_client.hooks.decisions import (
    allow,
    block,
    change_prompt,
    compact,
    deliver_to,
    deny,
    finalize,
    go_on,
    keep_whole,
    proceed,
    revise,
    rewrite,
    use_model,
)
from spawnmesh_client.hooks.fake_dispatch import FakeDispatch
from spawnmesh_client.hooks.handlers import HandlerFailed, Handlers, hook

__all__ = [
    "FakeDispatch",
    "HandlerFailed",
    "Handlers",
    "allow",
    "block",
    "change_prompt",
    "compact",
    "deliver_to",
    "deny",
    "finalize",
    "go_on",
    "hook",
    "keep_whole",
    "proceed",
    "revise",
    "rewrite",
    "use_model",
]
