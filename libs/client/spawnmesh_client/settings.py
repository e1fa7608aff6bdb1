"""Where the mesh is and who asks, from `SPAWNMESH_…` in the environment."""

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import ProcessSettings


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
    """Of a plugin that the command serves; `jwks_file` or `jwks_url` are the public keys of the mesh that may call it."""

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_PLUGIN_", frozen=True, extra="ignore")
