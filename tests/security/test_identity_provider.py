"""Tokens of an identity provider open what its settings say, with the keys that it serves."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime import jwks
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings, load_settings

from tests.support.security.attacked import Attacked, open_attacked
from tests.support.security.identity_provider import AUDIENCE, ISSUER, IdentityProvider, serving_keys
from tests.support.security.raw_calls import METHODS, bearer, refused, token_of

LIST = METHODS["spawnmesh.session.v1.SessionService.ListSessions"]
SEND = METHODS["spawnmesh.session.v1.SessionService.SendMessage"]
KILL = METHODS["spawnmesh.session.v1.SessionService.KillSession"]
MALFORMED_ALLOWED = (Reason.NOT_FOUND, Reason.INVALID_REQUEST)
"""The reasons of calls that got past the interceptors that authorize them."""


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with serving_keys() as served:
        served.add_key("rsa-1", "RS256")
        served.add_key("ec-1", "ES256")
        yield served


@dataclass
class Service:
    """A server that accepts tokens of the provider."""

    attacked: Attacked
    channel: grpc.aio.Channel

    async def reason(self, token: str, method: str = LIST.full_name) -> Reason | None:
        """Call the RPC with an empty message; return the reason of its refusal."""
        return (await refused(self.channel, METHODS[method], b"", headers=(bearer(token),))).reason


@pytest.fixture
async def service(
    keys: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """Serve with the settings of an operator, as they are in the environment."""
    monkeypatch.setenv("JWKS_FILE", str(keys / "jwks.json"))
    monkeypatch.setenv("LOG_LEVEL", "error")
    monkeypatch.setenv(
        "OIDC_ISSUERS",
        f'[{{"issuer": "{ISSUER}", "audience": "{AUDIENCE}", "jwks_url": "{provider.jwks_url}"}}]',
    )
    async with (
        start_process("session", load_settings(ProcessSettings)) as process,
        open_attacked(keys, verifier=process.verifier) as attacked,
        grpc.aio.insecure_channel(attacked.target, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        yield Service(attacked, channel)


@pytest.mark.parametrize("key_id", ["rsa-1", "ec-1"])
async def test_plain_token_opens_what_its_role_opens(
    service: Service, provider: IdentityProvider, key_id: str
) -> None:
    token = provider.token(key_id)
    assert await service.reason(token) in MALFORMED_ALLOWED
    assert await service.reason(token, SEND.full_name) in MALFORMED_ALLOWED
    assert await service.reason(token, KILL.full_name) is Reason.ROLE_MISSING
    assert provider.fetch_count == 1


@pytest.mark.parametrize(
    "changed",
    [{"aud": "account"}, {"iss": "https://login.example.com/realms/other"}, {"tenant": None}, {"sub": None}],
)
async def test_token_with_another_claim_opens_nothing(
    service: Service, provider: IdentityProvider, changed: dict[str, object]
) -> None:
    assert await service.reason(provider.token("rsa-1", **changed)) is Reason.TOKEN_INVALID
    assert service.attacked.reached == []


async def test_issuer_of_some_tenants_opens_no_other_one(keys: Path, provider: IdentityProvider) -> None:
    issuer = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": provider.jwks_url, "tenants": ["ac*"]}
    settings = ProcessSettings(
        jwks_file=keys / "jwks.json",
        log_level="error",
        oidc_issuers=[issuer],  # type: ignore[list-item]
    )
    async with (
        start_process("session", settings) as process,
        open_attacked(keys, verifier=process.verifier) as attacked,
        grpc.aio.insecure_channel(attacked.target, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        service = Service(attacked, channel)
        for name in METHODS:
            reason = await service.reason(provider.token("rsa-1", tenant="globex"), name)
            assert reason is Reason.TOKEN_INVALID, name
        assert attacked.reached == []
        assert await service.reason(provider.token("rsa-1")) in MALFORMED_ALLOWED


async def test_new_key_is_fetched_and_unknown_ids_are_not_fetched_again_and_again(
    service: Service, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await service.reason(provider.token("rsa-1")) in MALFORMED_ALLOWED
    monkeypatch.setattr(jwks, "_URL_RETRY_SECONDS", 0.0)
    provider.add_key("rsa-2", "RS256")
    assert await service.reason(provider.token("rsa-2")) in MALFORMED_ALLOWED
    assert provider.fetch_count == 2
    monkeypatch.setattr(jwks, "_URL_RETRY_SECONDS", 3600.0)
    provider.add_key("rsa-3", "RS256")
    for _ in range(5):
        assert await service.reason(provider.token("rsa-3")) is Reason.TOKEN_INVALID
    assert provider.fetch_count == 2
    del provider.keys["rsa-1"]
    monkeypatch.setattr(jwks, "_URL_RETRY_SECONDS", 0.0)
    assert await service.reason(provider.token("rsa-3")) in MALFORMED_ALLOWED


async def test_key_of_the_provider_signs_no_token_of_the_mesh_and_the_reverse(
    service: Service, provider: IdentityProvider
) -> None:
    of_the_mesh = {"iss": "client", "kind": "admin", "nbf": 0, "tenant": None}
    assert await service.reason(provider.token("rsa-1", **of_the_mesh)) is Reason.TOKEN_INVALID
    as_a_service = {"kind": "service", "sub": "session"}
    stage = "spawnmesh.attachment_blob.v1.AttachmentBlobService.AttachSet"
    assert await service.reason(provider.token("rsa-1", **as_a_service), stage) is Reason.CALLER_NOT_ALLOWED


async def test_provider_that_does_not_answer_stops_its_own_tokens_alone(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_keys() as provider:
        provider.add_key("rsa-1", "RS256")
        token = provider.token("rsa-1")
    settings = ProcessSettings(
        jwks_file=keys / "jwks.json",
        log_level="error",
        oidc_issuers=[{"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": provider.jwks_url}],  # type: ignore[list-item]
    )
    async with (
        start_process("session", settings) as process,
        open_attacked(keys, verifier=process.verifier) as attacked,
        grpc.aio.insecure_channel(attacked.target, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        service = Service(attacked, channel)
        assert await service.reason(token) is Reason.DEPENDENCY_UNAVAILABLE
        assert await service.reason(token_of(keys, CallerKind.CLIENT)) in MALFORMED_ALLOWED
