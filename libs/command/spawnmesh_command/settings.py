"""Settings of the command, from `SPAWNMESH_…` in the environment."""

from pathlib import Path

from pydantic import SecretStr, field_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_client.discovery import parse_url
from spawnmesh_runtime.settings import ProcessSettings


class CommandSettings(ProcessSettings):
    """The Python client reads the TLS files and `max_message_bytes` of them, too.

    `signing_key_file` is a key of the issuer `client`, to mint tokens; `token_audience` is their
    audience.
    """

    model_config = SettingsConfigDict(env_prefix="SPAWNMESH_", frozen=True, extra="ignore")

    session_target: str = ""
    """`host:port`.

    If it or the URL is set, the local `mesh.json` is not read, so that its keys never sign for
    another mesh.
    """
    url: str = ""
    """`https://host` or `http://host:port` of the gateway, for every service that has no target of
    its own. Its scheme decides about TLS there.
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

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if value := value.strip():
            parse_url(value)
        return value
