"""Bundled plugins, which the operator runs for tenants and lists in a file."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.plugins import (
    DEFAULT_CONCURRENT_CALLS,
    DEFAULT_TIMEOUT,
    FailurePolicy,
    HookKind,
    Plugin,
    default_failure_policy,
    wait_without_effect,
)


class BundledPlugin(BaseModel):
    """An entry of the file. Without `tenants` it serves all tenants.

    `python -m spawnmesh_hook webhook-secret NAME` prints the secret that signs the calls of a
    webhook. It is the same for all tenants.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    endpoint: str
    hooks: list[HookKind] = Field(min_length=1)
    priority: int = 0
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT.total_seconds(), gt=0, le=600)
    failure_policy: FailurePolicy | None = None
    max_concurrent_calls: int = Field(default=DEFAULT_CONCURRENT_CALLS, ge=1, le=1000)
    max_wait_seconds: float | None = Field(default=None, gt=0, le=86400)
    tenants: list[str] | None = None


class BundledPlugins:
    """The plugins of the file, which is read when the service starts."""

    def __init__(self, entries: Sequence[BundledPlugin]) -> None:
        # Negative: among equal priorities they come before the plugins that tenants registered.
        self._entries = [
            (entry, _plugin(entry, registration))
            for registration, entry in enumerate(entries, start=-len(entries))
        ]

    @property
    def hooks(self) -> list[HookKind]:
        """Return the hooks of all plugins, whichever tenants they serve."""
        named = {hook for _, plugin in self._entries for hook in plugin.hooks}
        return [hook for hook in HookKind if hook in named]

    def list_for(self, tenant_id: str) -> list[Plugin]:
        """Return the plugins that serve the tenant, in the order of the file."""
        return [
            plugin for entry, plugin in self._entries if entry.tenants is None or tenant_id in entry.tenants
        ]

    def serves(self, tenant_id: str, name: str) -> bool:
        """Return whether a plugin of this name serves the tenant."""
        return any(plugin.name == name for plugin in self.list_for(tenant_id))

    def has_name(self, name: str) -> bool:
        """Return whether a plugin has this name, for any tenant."""
        return any(entry.name == name for entry, _ in self._entries)


def read_bundled(file: Path | None) -> BundledPlugins:
    """Read the JSON list of plugins. Raises ValueError with the cause if the file is invalid."""
    if file is None:
        return BundledPlugins([])
    try:
        entries = TypeAdapter(list[BundledPlugin]).validate_json(file.read_bytes())
    except OSError as error:
        raise ValueError(f"the file of bundled plugins cannot be read: {error.strerror}") from None
    except ValidationError as error:
        causes = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise ValueError(f"the file of bundled plugins: {causes}") from None
    names = [entry.name for entry in entries]
    if len(names) != len(set(names)):
        raise ValueError("the file of bundled plugins gives one name twice")
    for entry in entries:
        try:
            parse_endpoint(entry.endpoint)
        except ValueError as error:
            raise ValueError(f"the file of bundled plugins: {entry.name}: endpoint {error}") from None
        if why := wait_without_effect(_plugin(entry)):
            raise ValueError(f"the file of bundled plugins: {entry.name}: max_wait_seconds {why}")
    return BundledPlugins(entries)


def _plugin(entry: BundledPlugin, registration: int = 0) -> Plugin:
    hooks = tuple(dict.fromkeys(entry.hooks))
    return Plugin(
        name=entry.name,
        endpoint=entry.endpoint,
        hooks=hooks,
        priority=entry.priority,
        timeout=timedelta(seconds=entry.timeout_seconds),
        failure_policy=entry.failure_policy or default_failure_policy(hooks),
        grants=(),
        max_concurrent_calls=entry.max_concurrent_calls,
        bundled=True,
        max_wait=None if entry.max_wait_seconds is None else timedelta(seconds=entry.max_wait_seconds),
        registration=registration,
    )
