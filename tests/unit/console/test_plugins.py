"""Hooks of plugins in words."""

from spawnmesh_client.resource_views import HookKind
from spawnmesh_console.domain.plugins import hook_words


def test_the_console_knows_all_hooks() -> None:
    unknown = hook_words("NO_HOOK")
    hooks = {*HookKind} - {"UNKNOWN"}
    assert len(hooks) >= 21
    assert [hook for hook in hooks if hook_words(hook) == unknown] == []
