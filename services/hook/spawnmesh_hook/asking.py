"""Asking the plugins of a hook one after the other."""

from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from google.protobuf.message import Message

from spawnmesh_hook.answers import Failure
from spawnmesh_hook.apart import apart
from spawnmesh_hook.budget import Budget
from spawnmesh_hook.directory import PluginDirectory
from spawnmesh_hook.domain.plugins import FailurePolicy, HookKind, Viewer
from spawnmesh_hook.errors import PluginFailed
from spawnmesh_hook.plugin_calls import PluginCalls
from spawnmesh_hook.questions import Question

E = TypeVar("E", bound=Message)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


async def answers_in_order(
    directory: PluginDirectory,
    calls: PluginCalls,
    tenant_id: str,
    hook: HookKind,
    budget: Budget,
    event: E,
    question: Callable[[Viewer, E], Question[Q, A]],
) -> AsyncGenerator[tuple[Viewer, A], None]:
    """Each plugin with its valid answer, highest priority first; the next one is asked when the next answer is asked for.

    It is told the event as that is then. One that fails is left out where it is OPEN. Raises PluginFailed for one that is CLOSED.
    """
    for viewer in await directory.viewers(tenant_id, hook, await directory.active(tenant_id, hook)):
        plugin = viewer.plugin
        asked = await apart(event.ByteSize(), question, viewer, event)
        answer = await calls.ask(tenant_id, plugin, asked, budget)
        if not isinstance(answer, Failure):
            yield viewer, answer
        elif plugin.failure_policy is FailurePolicy.CLOSED:
            raise PluginFailed(plugin.name, hook, answer.error)
