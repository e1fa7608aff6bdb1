"""Settings of the command and of plugins that it serves, from `SPAWNMESH_…` in the environment."""

import re
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings

_PLUGIN_ENDPOINT = re.compile(r"grpc://[^/\s]+:\d{1,5}")


class ClientSettings(ProcessSettings):
    """The command reads all of them; the library reads only the TLS files and
    `max_message_bytes`.

    `signing_key_file` is a key of the issuer `client`, to mint tokens; `token_audience` is their
    audience.
    """

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_", frozen=True, extra="ignore")

    session_target: str = ""
    """`host:port`.

    If set, the local `mesh.json` is not read, so that its keys never sign for another mesh.
    """
    transcript_target: str = ""
    attachment_blob_target: str = ""
    model_router_target: str = ""
    hook_target: str = ""
    token: SecretStr = SecretStr("")
    tenant: str = "demo"
    """The tenant of tokens that are minted here. A given token names its own tenant."""
    data: Path = Path(".data")
    """The directory in which a mesh on this machine writes `mesh.json`."""


class PluginSettings(ProcessSettings):
    """Settings of a plugin that the command serves.

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
