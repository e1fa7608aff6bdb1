"""Settings of a plugin, from `SPAWNMESH_PLUGIN_…` in the environment."""

import re
from ipaddress import ip_address

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings

_PLUGIN_ENDPOINT = re.compile(r"grpc://[^/\s]+:\d{1,5}")


class PluginSettings(ProcessSettings):
    """Settings of a plugin that is served with `serve`.

    `jwks_file` or `jwks_url` hold the public keys of the mesh that may call it, and
    `token_audience` is that mesh's audience.
    """

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_PLUGIN_", frozen=True, extra="ignore")

    endpoint: str = ""
    """`grpc://host:port` exactly as it is registered: tokens for this endpoint are valid nowhere
    else.
    """
    tenants: list[str] = Field(default_factory=list)
    """The tenants whose calls are answered."""
    all_tenants: bool = False
    """Answer every tenant's calls, as a plugin of the mesh's operator does."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_endpoint(cls, value: str) -> str:
        if value and _PLUGIN_ENDPOINT.fullmatch(value) is None:
            raise ValueError("must be grpc://host:port, as it is registered")
        return value

    @property
    def registered_endpoint(self) -> str:
        """Return `endpoint`, or else the listen address; empty if no peer could connect to it."""
        if self.endpoint:
            return self.endpoint
        return "" if self.listen_port == 0 or _is_every_address(self.listen_host) else f"grpc://{self.listen}"


def _is_every_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
