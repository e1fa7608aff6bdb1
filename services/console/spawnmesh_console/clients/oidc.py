"""The identity provider at which people sign in: OpenID Connect, the authorization code flow with
PKCE (RFC 7636, RFC 9207).

The console verifies the ID token, which ties the answer to the browser that asked for it. The
services of the mesh verify the token that calls have.
"""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlsplit

import httpx2
import jwt
import structlog
from authlib.common.urls import add_params_to_uri
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc.errors import JoseError
from spawnmesh_core.clock import Monotonic, monotonic_seconds
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.jwks import JwksUrl, check_https

from spawnmesh_console.clients.bounded_answer import bounded_answer
from spawnmesh_console.domain.sign_in_attempt import (
    SignInAttempt,
    error_code,
    is_mixed_up,
    may_pass,
    words_for,
)
from spawnmesh_console.settings import ConsoleSettings

CALLBACK_PATH = "/sign-in/oidc/callback"
"""The path of the console to which the identity provider sends people back."""

_TIMEOUT_SECONDS = 10.0
_METADATA_FRESH_SECONDS = 3600.0
_METADATA_RETRY_SECONDS = 5.0
_MAX_BYTES = 1024 * 1024
_CLOCK_SKEW_SECONDS = 30
_BASIC, _POST, _NONE = "client_secret_basic", "client_secret_post", "none"

log = structlog.get_logger()


class IdentityProviderDown(Exception):
    """The identity provider does not answer, or not as OpenID Connect says. The message is for
    the log.
    """


class SignInRefused(Exception):
    """The sign-in is not accepted. The message is for the person."""


@dataclass(frozen=True, slots=True)
class ProviderMetadata:
    """The part of the provider's metadata that is used. `names_itself`: each answer has `iss`."""

    authorization_endpoint: str
    token_endpoint: str
    keys_url: str
    keys: JwksUrl
    authentication: str
    names_itself: bool


class OidcProvider:
    """The issuer of the settings. Its metadata is fetched at first use, and again after an hour.

    If the metadata cannot be fetched again, the previous one stays in use.
    """

    def __init__(self, settings: ConsoleSettings, *, monotonic: Monotonic = monotonic_seconds) -> None:
        self._settings = settings
        self._issuer = settings.sign_in_issuer
        self._client_id = settings.sign_in_client_id
        self._monotonic = monotonic
        self._metadata: ProviderMetadata | None = None
        self._fetched = self._failed = float("-inf")
        self._lock = asyncio.Lock()
        self._trusted: ssl.SSLContext = httpx2.create_ssl_context()

    @property
    def host(self) -> str:
        """The host of the provider, by which people know it."""
        return urlsplit(self._issuer).hostname or ""

    async def authorization_url(self, attempt: SignInAttempt) -> str:
        """Return the address at which the person signs in. Raises IdentityProviderDown."""
        metadata = await self._current_metadata()
        async with self._client(metadata) as client:
            url, _ = client.create_authorization_url(
                add_params_to_uri(
                    metadata.authorization_endpoint, [*self._settings.sign_in_parameters.items()]
                ),
                state=attempt.state,
                nonce=attempt.nonce,
                code_verifier=attempt.code_verifier,
            )
        return str(url)

    async def token_of(self, attempt: SignInAttempt, answer: Mapping[str, str]) -> str:
        """Return the token for calls of the person, for the answer that came back with the browser.

        Raises SignInRefused for an answer that does not belong to the attempt, and
        IdentityProviderDown.
        """
        if not attempt.is_answered_by(answer):
            raise SignInRefused("This answer belongs to another sign-in. Start again.")
        metadata = await self._current_metadata()
        if is_mixed_up(answer, self._issuer, names_itself=metadata.names_itself):
            log.warning("sign_in_mixed_up")
            raise SignInRefused("This answer is not of the identity provider that was asked. Start again.")
        if "error" in answer:
            raise _refusal(error_code(answer["error"]))
        if not answer.get("code"):
            raise _refusal("unknown_error")
        tokens = await self._exchange(answer["code"], attempt, metadata)
        id_token, access_token = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(id_token, str):
            raise IdentityProviderDown("the answer has no ID token")
        if not isinstance(access_token, str):
            raise IdentityProviderDown("the answer has no access token")
        await self._check_id_token(id_token, access_token, attempt, metadata)
        return {"id": id_token, "access": access_token}[self._settings.sign_in_token]

    async def _exchange(
        self, code: str, attempt: SignInAttempt, metadata: ProviderMetadata
    ) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._client(metadata) as client:
                tokens: Mapping[str, Any] = await client.fetch_token(
                    metadata.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=attempt.code_verifier,
                )
        except OAuthError as error:
            raise _refusal(error_code(error.error)) from None
        except (httpx2.HTTPError, TimeoutError, ValueError, TypeError) as error:
            raise IdentityProviderDown(f"the code cannot be exchanged: {type(error).__name__}") from error
        return tokens

    async def _check_id_token(
        self, id_token: str, access_token: str, attempt: SignInAttempt, metadata: ProviderMetadata
    ) -> None:
        """Raise SignInRefused unless the provider made both tokens for this attempt."""
        claims, header = await self._signed(id_token, metadata.keys)
        expected = {
            "iss": {"essential": True, "value": self._issuer},
            "aud": {"essential": True, "value": self._client_id},
        }
        bound_to = {"nonce": attempt.nonce, "client_id": self._client_id, "access_token": access_token}
        try:
            CodeIDToken(claims, header, expected, bound_to).validate(leeway=_CLOCK_SKEW_SECONDS)
        except (JoseError, ValueError, TypeError, AttributeError) as error:  # Also of a strange type.
            log.warning("id_token_refused", why=str(error)[:200])
            raise SignInRefused(
                "The answer of the identity provider does not belong to this sign-in. Start again."
            ) from None

    async def _signed(self, token: str, keys: JwksUrl) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the claims and the header of a token that a key of the provider signed."""
        try:
            header = jwt.get_unverified_header(token)
            key_id = str(header.get("kid"))
            await keys.refresh(unknown_key=False)
            if not keys.keys().get(key_id):
                await keys.refresh(unknown_key=True)
        except MeshError:
            raise IdentityProviderDown("the keys cannot be fetched") from None
        except jwt.PyJWTError:
            raise IdentityProviderDown("the ID token is no signed JWT") from None
        for key in keys.keys().get(key_id, ()):
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[key.algorithm],
                    # All claims are checked together, with one leeway.
                    options={
                        "verify_aud": False,
                        "verify_exp": False,
                        "verify_nbf": False,
                        "verify_iat": False,
                    },
                )
            except jwt.PyJWTError:  # Another one of the keys may have signed it.
                continue
            return claims, header
        log.warning("id_token_refused", reason="signature")
        raise SignInRefused(
            "The answer of the identity provider is not signed by it. Tell an operator of the mesh."
        )

    async def _current_metadata(self) -> ProviderMetadata:
        """Return the metadata. Raises IdentityProviderDown if there never was one."""
        if self._is_due():
            async with self._lock:
                if self._is_due():
                    await self._fetch_metadata()
        if self._metadata is None:
            raise IdentityProviderDown("the metadata cannot be fetched")
        return self._metadata

    def _is_due(self) -> bool:
        now = self._monotonic()
        is_old = self._metadata is None or now - self._fetched >= _METADATA_FRESH_SECONDS
        return is_old and now - self._failed >= _METADATA_RETRY_SECONDS

    async def _fetch_metadata(self) -> None:
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                httpx2.AsyncClient(**self._http_options()) as client,
            ):
                answer = await client.get(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
                answer.raise_for_status()
                self._metadata = self._metadata_of(answer.json())
        except (httpx2.HTTPError, TimeoutError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._failed = self._monotonic()
            log.warning("identity_provider_unreadable", error=type(error).__name__, why=str(error)[:200])
        else:
            self._fetched = self._monotonic()

    def _metadata_of(self, document: Mapping[str, Any]) -> ProviderMetadata:
        """Return what is used of the document. Raises ValueError, TypeError or KeyError."""
        if document["issuer"] != self._issuer:
            raise ValueError("the metadata is of another issuer")
        keys_url, known = check_https(document["jwks_uri"]), self._metadata
        is_known = known is not None and known.keys_url == keys_url
        return ProviderMetadata(
            check_https(document["authorization_endpoint"]),
            check_https(document["token_endpoint"]),
            keys_url,
            known.keys if known is not None and is_known else JwksUrl(keys_url, issuer=self._issuer),
            self._authentication(document.get("token_endpoint_auth_methods_supported", [_BASIC])),
            document.get("authorization_response_iss_parameter_supported") is True,
        )

    def _authentication(self, supported: list[str]) -> str:
        if self._settings.sign_in_client_secret_file is None:
            return _NONE
        return _POST if _BASIC not in supported and _POST in supported else _BASIC

    def _client(self, metadata: ProviderMetadata) -> Any:
        file = self._settings.sign_in_client_secret_file
        try:
            secret = None if file is None else file.read_text().strip()
        except (OSError, ValueError):
            raise IdentityProviderDown("the secret of the client cannot be read") from None
        client = AsyncOAuth2Client(
            client_id=self._client_id,
            client_secret=secret,
            token_endpoint_auth_method=metadata.authentication,
            scope=self._settings.sign_in_scopes,
            redirect_uri=f"{self._settings.public_url}{CALLBACK_PATH}",
            code_challenge_method="S256",
            **self._http_options(),
        )
        client.register_client_auth_method((_BASIC, _encoded_basic))
        return client

    def _http_options(self) -> dict[str, Any]:
        return {
            "verify": self._trusted,
            "timeout": _TIMEOUT_SECONDS,
            "follow_redirects": False,
            "headers": {"accept": "application/json", "accept-encoding": "identity"},
            "event_hooks": {"response": [bounded_answer(_MAX_BYTES)]},
        }


def _refusal(code: str) -> Exception:
    """Return the exception for an error that the provider reports."""
    log.info("sign_in_refused", error=code)
    return IdentityProviderDown(code) if may_pass(code) else SignInRefused(words_for(code))


def _encoded_basic(
    client: Any, _method: str, uri: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Encode id and secret, as RFC 6749 says in section 2.3.1. The library does not do so."""
    credentials = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
    headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
    return uri, headers, body
