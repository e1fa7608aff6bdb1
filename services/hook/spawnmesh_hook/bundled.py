"""Plugins that the operator runs for tenants, from a file."""

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
)


class BundledPlugin(BaseModel):
    """One entry of the file; `tenants` names those it serves, all where it is left out.

    What a webhook's calls are signed with, for every tenant alike, says `python -m spawnmesh_hook webhook-secret NAME`.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    endpoint: str
    hooks: list[HookKind] = Field(min_length=1)
    priority: int = 0
    timeout_seconds: float = Field(default=DEFAULT_TIMEOUT.total_seconds(), gt=0, le=600)
    failure_policy: FailurePolicy | None = None
    max_concurrent_calls: int = Field(default=DEFAULT_CONCURRENT_CALLS, ge=1, le=1000)
    tenants: list[str] | None = None


class BundledPlugins:
    """What the file says; it is read when the service starts."""

    def __init__(self, entries: Sequence[BundledPlugin]) -> None:
        self._entries = [(entry, _plugin(entry)) for entry in entries]

    def of(self, tenant_id: str) -> list[Plugin]:
        """Those that serve the tenant, in the order of the file."""
        return [plugin for entry, plugin in self._entries if entry.tenants is None or tenant_id in entry.tenants]

    def serves(self, tenant_id: str, name: str) -> bool:
        """Whether one of this name serves the tenant."""
        return any(plugin.name == name for plugin in self.of(tenant_id))

    def named(self, name: str) -> bool:
        """Whether one has this name, whomever it serves."""
        return any(entry.name == name for entry, _ in self._entries)


def read_bundled(file: Path | None) -> BundledPlugins:
    """The plugins of a JSON list. Raises ValueError, naming what is wrong, for a file that holds none."""
    if file is None:
        return BundledPlugins([])
    try:
        entries = TypeAdapter(list[BundledPlugin]).validate_json(file.read_bytes())
    except OSError as error:
        raise ValueError(f"the file of bundled plugins cannot be read: {error.strerror}") from None
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5])
        raise ValueError(f"the file of bundled plugins: {places}") from None
    names = [entry.name for entry in entries]
    if len(names) != len(set(names)):
        raise ValueError("the file of bundled plugins gives one name twice")
    for entry in entries:
        try:
            parse_endpoint(entry.endpoint)
        except ValueError as error:
            raise ValueError(f"the file of bundled plugins: {entry.name}: endpoint {error}") from None
    return BundledPlugins(entries)


def _plugin(entry: BundledPlugin) -> Plugin:
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
    )
