"""Settings that the console reads from its environment, with the prefix CONSOLE_."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict
from spawnmesh_runtime.jwks import check_https
from spawnmesh_runtime.settings import MIB, ProcessSettings

_SCOPES = re.compile(r"[!#-\[\]-~]+( [!#-\[\]-~]+)*")
_OWN_PARAMETERS = frozenset(
    (
        *("client_id", "client_secret", "code_challenge", "code_challenge_method", "nonce", "redirect_uri"),
        *("request", "request_uri", "response_mode", "response_type", "scope", "state"),
    )
)


class ConsoleSettings(ProcessSettings):
    """The console's settings. It serves HTTP at `listen`."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="CONSOLE_")

    session_target: str
    """`host:port` of the session service."""
    transcript_target: str
    """`host:port` of the transcript service."""
    model_router_target: str
    """`host:port` of the model router."""
    attachment_blob_target: str
    """`host:port` of the attachment-blob service."""
    hook_target: str
    """`host:port` of the hook service."""
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
    sign_in_issuer: str = ""
    """Issuer of OpenID Connect at which people sign in, exactly as it names itself.

    Its endpoints are found below it. The services must accept its tokens (`OIDC_ISSUERS`).
    """
    sign_in_client_id: str = ""
    """The id under which the issuer knows the console."""
    sign_in_client_secret_file: Path | None = None
    """File with the secret of the client. Without it, the console is a public client."""
    sign_in_token: Literal["access", "id"] = "access"  # noqa: S105 - a name, not a secret
    """The token of the issuer that calls of a person have: the access token, or the ID token."""
    sign_in_scopes: str = "openid"
    """The scopes that are requested, separated by spaces. `openid` is one of them."""
    sign_in_parameters: Mapping[str, str] = {}
    """Further parameters of the request, such as `audience` or `resource`, as a JSON object."""
    traces_url: str = ""
    """The address of a trace in the backend of traces, with `{trace_id}` in place of its id.

    It leads to OTLP JSON, as in Jaeger (`/api/v3/traces/{trace_id}`) and Tempo
    (`/api/v2/traces/{trace_id}`). Without it, the page of a trace says so.
    """
    traces_headers_file: Path | None = None
    """File with headers for the backend of traces: `Name: value` on each line."""
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

    @field_validator("traces_url")
    @classmethod
    def _is_an_address_of_a_trace(cls, value: str) -> str:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        has_place = "{trace_id}" in f"{parts.path}?{parts.query}" and "{" not in parts.netloc
        if value and not (is_one and has_place and value.isprintable() and not set(" #") & set(value)):
            raise ValueError("must be http://… or https://… with {trace_id} in its path or its query")
        if "@" in parts.netloc:
            raise ValueError("must have no password: traces_headers_file can have the header Authorization")
        return value

    @field_validator("sign_in_issuer")
    @classmethod
    def _is_an_issuer(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (not parts.netloc or parts.query or parts.fragment or not value.isprintable()):
            raise ValueError("must be a URL without a query and a fragment")
        return check_https(value) if value else value

    @field_validator("sign_in_scopes")
    @classmethod
    def _ask_for_openid(cls, value: str) -> str:
        if not _SCOPES.fullmatch(value) or "openid" not in value.split():
            raise ValueError("must be names that are separated by one space, and openid among them")
        return value

    @field_validator("sign_in_parameters")
    @classmethod
    def _are_not_of_the_protocol(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if own := sorted(_OWN_PARAMETERS & set(value)):
            raise ValueError(f"{own[0]} is set by the console")
        return value

    @model_validator(mode="after")
    def _can_sign_in_at_the_issuer(self) -> Self:
        if not self.sign_in_issuer:
            return self
        if not self.sign_in_client_id:
            raise ValueError("sign_in_issuer needs sign_in_client_id")
        if not self.public_url:
            raise ValueError("sign_in_issuer needs public_url, to which the issuer sends people back")
        try:
            check_https(self.public_url)
        except ValueError:
            raise ValueError("sign_in_issuer needs a public_url with https://") from None
        return self

    @property
    def is_https(self) -> bool:
        """True if people's browsers reach the console by HTTPS."""
        return self.public_url.startswith("https://")
