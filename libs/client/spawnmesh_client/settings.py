"""Where the mesh is and who asks, from `SPAWNMESH_…` in the environment."""

import re
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings

_PLUGIN_ENDPOINT = re.compile(r"grpc://[^/\s]+:\d{1,5}")


class ClientSettings(ProcessSettings):
    """The command reads all of it; the library only what its channels need: the TLS files and `max_message_bytes`.

    `signing_key_file` is a key of an issuer `client`, for whoever mints tokens of their own; `token_audience` is what the mesh wants in these.
    """

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_", frozen=True, extra="ignore")

    session_target: str = ""
    """`host:port`. With it the local `mesh.json` is not looked at, so that its keys never vouch to a foreign mesh."""
    transcript_target: str = ""
    attachment_blob_target: str = ""
    model_router_target: str = ""
    hook_target: str = ""
    token: SecretStr = SecretStr("")
    tenant: str = "demo"
    """Whom tokens that are minted here are for; a token that is given names its own."""
    data: Path = Path(".data")
    """Directory in which a mesh on this machine leaves `mesh.json`."""


class PluginSettings(ProcessSettings):
    """Of a plugin that the command serves; `jwks_file` or `jwks_url` are the public keys of the mesh that may call it, and `token_audience`
    is that of the mesh."""

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_PLUGIN_", frozen=True, extra="ignore")

    endpoint: str = ""
    """`grpc://host:port` as it is registered, letter by letter: what it is called with is good there and nowhere else."""
    tenants: list[str] = Field(default_factory=list)
    """Whose calls are answered."""
    all_tenants: bool = False
    """Every tenant's are, as those of a plugin that the operator of the mesh has for all."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_endpoint(cls, value: str) -> str:
        if value and _PLUGIN_ENDPOINT.fullmatch(value) is None:
            raise ValueError("must be grpc://host:port, as it is registered")
        return value

    @property
    def registered_endpoint(self) -> str:
        """`endpoint`, else the address that is listened at; empty where that is none that anybody could dial."""
        if self.endpoint:
            return self.endpoint
        return "" if self.listen_port == 0 or _is_every_address(self.listen_host) else f"grpc://{self.listen}"


def _is_every_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
