"""Calls the plugins of a hook, one after the other or all at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from spawnmesh_runtime.cpu_workers import CpuWorkers

from spawnmesh_hook.clients.handler_request import HandlerRequest
from spawnmesh_hook.domain.call_failures import CallFailure
from spawnmesh_hook.domain.plugins import ContentAccess, FailurePolicy, HookKind, Plugin
from spawnmesh_hook.operations.plugin_cache import PluginCache
from spawnmesh_hook.operations.plugin_invoker import PluginInvoker
from spawnmesh_hook.operations.plugin_waits import PluginWaits
from spawnmesh_hook.operations.time_budget import TimeBudget

E = TypeVar("E", bound=Message)
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Dispatcher:
    """Calls the active plugins of a hook in order of priority."""

    def __init__(
        self, plugin_cache: PluginCache, invoker: PluginInvoker, waits: PluginWaits, workers: CpuWorkers
    ) -> None:
        self._plugin_cache = plugin_cache
        self._invoker = invoker
        self._waits = waits
        self._workers = workers

    async def answers(
        self,
        tenant_id: str,
        hook: HookKind,
        budget: TimeBudget,
        event: E,
        build: Callable[[ContentAccess, E], HandlerRequest[Q, A]],
        plugins: Sequence[Plugin] | None = None,
    ) -> AsyncGenerator[tuple[ContentAccess, A], None]:
        """Yield each plugin with its valid answer, highest priority first.

        The next plugin is called when the next answer is requested, and gets the event as it is
        then. A plugin that fails is skipped if it is OPEN. Raises PluginFailed for one that is
        CLOSED; it is final if the run has waited for the plugin's `max_wait`.
        """
        if plugins is None:
            plugins = await self._plugin_cache.active(tenant_id, hook)
        for access in await self._plugin_cache.content_access(tenant_id, hook, plugins):
            plugin = access.plugin
            request = await self._workers.run(tenant_id, event.ByteSize(), build, access, event)
            answer = await self._invoker.invoke(tenant_id, plugin, request, budget)
            if not isinstance(answer, CallFailure):
                await self._waits.answered(tenant_id, plugin, hook, request.run_id)
                yield access, answer
            elif plugin.failure_policy is FailurePolicy.CLOSED:
                raise await self._waits.failed(tenant_id, plugin, hook, request.run_id, answer)

    async def concurrent_answers(
        self,
        tenant_id: str,
        hook: HookKind,
        budget: TimeBudget,
        event: E,
        build: Callable[[ContentAccess, E], HandlerRequest[Q, A]],
        plugins: Sequence[Plugin],
    ) -> list[tuple[ContentAccess, A | CallFailure]]:
        """Call all plugins at the same time. Return each with its answer, highest priority first.

        It takes as long as the slowest plugin, and returns when the last call has ended.
        """
        accesses = await self._plugin_cache.content_access(tenant_id, hook, plugins)
        requests = [
            await self._workers.run(tenant_id, event.ByteSize(), build, access, event) for access in accesses
        ]
        calls = [
            self._invoker.invoke(tenant_id, access.plugin, request, budget)
            for access, request in zip(accesses, requests, strict=True)
        ]
        # With exceptions as results, no call goes on after this one has failed.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        called: list[tuple[ContentAccess, A | CallFailure]] = []
        for access, answer in zip(accesses, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            called.append((access, answer))
        return called
