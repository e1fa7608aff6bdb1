"""Plugins of one's own: mark a function with `@hook`, serve its module with `spawnmesh hooks serve`, try it with `FakeDispatch`."""

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
