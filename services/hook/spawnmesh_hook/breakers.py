"""The circuit breakers of this replica, and how many calls each plugin has at present."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spawnmesh_core.clock import Monotonic, monotonic_seconds

from spawnmesh_hook.domain import breaker
from spawnmesh_hook.domain.breaker import Breaker
from spawnmesh_hook.domain.plugins import Plugin

Key = tuple[str, str, int]


class Breakers:
    """One for each plugin that has failed lately. A plugin that was registered, paused or resumed since begins anew."""

    def __init__(self, monotonic: Monotonic = monotonic_seconds) -> None:
        self._monotonic = monotonic
        self._failing: dict[Key, Breaker] = {}

    def admit(self, tenant_id: str, plugin: Plugin) -> bool:
        """Whether the plugin may be called; a call that may be made has begun with the answer."""
        key = key_of(tenant_id, plugin)
        found = self._failing.get(key)
        if found is None:
            return True
        if not breaker.may_call(found, self._monotonic()):
            return False
        self._failing[key] = breaker.begun(found)
        return True

    def succeeded(self, tenant_id: str, plugin: Plugin) -> None:
        """It gave a valid answer."""
        self._failing.pop(key_of(tenant_id, plugin), None)

    def failed(self, tenant_id: str, plugin: Plugin) -> None:
        """It gave none. What is known of its earlier registrations is forgotten."""
        key = key_of(tenant_id, plugin)
        for other in [one for one in self._failing if one[:2] == key[:2] and one != key]:
            del self._failing[other]
        self._failing[key] = breaker.failed(self._failing.get(key, Breaker()), self._monotonic())

    def given_up(self, tenant_id: str, plugin: Plugin) -> None:
        """The call was ended by others; it tells nothing of the plugin."""
        key = key_of(tenant_id, plugin)
        if key in self._failing:
            self._failing[key] = breaker.given_up(self._failing[key])


@dataclass(slots=True)
class _Slots:
    free: asyncio.Semaphore
    users: int = 0


class CallSlots:
    """As many calls of a plugin at a time as it takes; those beyond wait in order."""

    def __init__(self) -> None:
        self._slots: dict[Key, _Slots] = {}

    @asynccontextmanager
    async def slot(self, tenant_id: str, plugin: Plugin) -> AsyncIterator[None]:
        """Waits for a slot and holds it for the block."""
        key = key_of(tenant_id, plugin)
        slots = self._slots.setdefault(key, _Slots(asyncio.Semaphore(plugin.max_concurrent_calls)))
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if slots.users == 0:
                self._slots.pop(key, None)


def key_of(tenant_id: str, plugin: Plugin) -> Key:
    """Names a registration."""
    return tenant_id, plugin.name, plugin.generation
