"""Write a plugin: mark functions with `@hook`, serve them with `spawnmesh hooks serve`, test
with `FakeDispatch`.
"""

from spawnmesh_plugin.decisions import (
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
    require_approval,
    revise,
    rewrite,
    use_model,
)
from spawnmesh_plugin.fake_dispatch import FakeDispatch
from spawnmesh_plugin.handlers import HandlerFailed, Handlers, hook

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
    "require_approval",
    "revise",
    "rewrite",
    "use_model",
]
