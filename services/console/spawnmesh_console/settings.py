"""Settings that the console reads from its environment, with the prefix CONSOLE_."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.settings import MIB, ProcessSettings


class ConsoleSettings(ProcessSettings):
    """The console's settings. It serves HTTP at `listen`."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="CONSOLE_")

    session_target: str
    transcript_target: str
    model_router_target: str
    attachment_blob_target: str
    hook_target: str
    public_url: str = ""
    """The address in people's browsers, such as `https://console.example.com`.

    Requests for another host are refused. Without it, the console serves `localhost` and the
    address of `listen` alone.
    """
    cookie_key_file: Path | None = None
    """File with the keys that seal cookies: 32 bytes in URL-safe base64 on each line.

    The first one seals, and all open. Replicas share the file. Without it, each process has a key
    of its own, and people sign in again after a restart.
    """
    sign_in_file: Path | None = None
    """File in which a mesh on one machine leaves a token for the next person with the right code.

    The console deletes the file when the code is used.
    """
    max_upload_bytes: int = Field(default=64 * MIB, ge=MIB, le=1024 * MIB)
    """The largest form that is read, with its files."""

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (
            parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/")
        ):
            raise ValueError("must be http://host[:port] or https://host[:port]")
        return value.rstrip("/")

    @property
    def is_https(self) -> bool:
        """True if people's browsers reach the console by HTTPS."""
        return self.public_url.startswith("https://")
