"""Only one valid token, of a caller that the contract allows, opens an RPC; nothing is read before."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_core.clock import utc_now
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.tokens import SERVICES, TokenMinter

from tests.support.security.attacked import Attacked
from tests.support.security.raw_calls import (
    METHODS,
    SECONDS,
    TENANT,
    Refused,
    allowed_token,
    bearer,
    path_of,
    refused,
    token_of,
)

RPC = METHODS["spawnmesh.session.v1.SessionService.GetSession"]


def client_token(keys: Path, issuer: str = "client", **options: object) -> str:
    minter = TokenMinter(issuer, keys / "client.pem", **options)  # type: ignore[arg-type]
    return minter.client_token(TENANT, "mallory", SECONDS)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def claims(keys: Path, **changed: object) -> dict[str, object]:
    """Return the claims of a valid token, with some changed; None removes one."""
    read = jwt.decode(client_token(keys), options={"verify_signature": False})
    return {name: value for name, value in {**read, **changed}.items() if value is not None}


def signed(
    keys: Path, issuer: str = "client", headers: dict[str, object] | None = None, **changed: object
) -> str:
    key = load_pem_private_key((keys / f"{issuer}.pem").read_bytes(), None)
    kid = {"kid": jwt.get_unverified_header(client_token(keys))["kid"]}
    return jwt.encode(claims(keys, **changed), key, algorithm="EdDSA", headers={**kid, **(headers or {})})  # type: ignore[arg-type]


def unsigned(keys: Path) -> str:
    header = {**jwt.get_unverified_header(client_token(keys)), "alg": "none"}
    return f"{part(header)}.{part(claims(keys))}."


def signed_with_the_public_key(keys: Path) -> str:
    key = load_pem_private_key((keys / "client.pem").read_bytes(), None)
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    header = jwt.get_unverified_header(client_token(keys))
    return jwt.encode(claims(keys), public, algorithm="HS256", headers={"kid": header["kid"]})


def with_other_claims(keys: Path) -> str:
    header, _, signature = client_token(keys).split(".")
    return f"{header}.{part(claims(keys, tenant='other'))}.{signature}"


HOUR = timedelta(hours=1)
TOKENS: dict[str, tuple[Callable[[Path], str], Reason]] = {
    "no JWT": (lambda keys: "nonsense", Reason.TOKEN_INVALID),
    "a JWT without a signature": (lambda keys: client_token(keys).rpartition(".")[0], Reason.TOKEN_INVALID),
    "an empty signature": (lambda keys: client_token(keys).rpartition(".")[0] + ".", Reason.TOKEN_INVALID),
    "algorithm none": (unsigned, Reason.TOKEN_INVALID),
    "HS256 with the public key": (signed_with_the_public_key, Reason.TOKEN_INVALID),
    "claims changed after signing": (with_other_claims, Reason.TOKEN_INVALID),
    "key of another issuer": (lambda keys: signed(keys, "hook"), Reason.TOKEN_INVALID),
    "key in the header": (lambda keys: signed(keys, "hook", {"jwk": {"kty": "OKP"}}), Reason.TOKEN_INVALID),
    "key id that is a path": (
        lambda keys: signed(keys, headers={"kid": "../client.pem"}),
        Reason.TOKEN_INVALID,
    ),
    "issuer that is not the key's": (lambda keys: signed(keys, iss="session"), Reason.TOKEN_INVALID),
    "no issuer": (lambda keys: signed(keys, iss=None), Reason.TOKEN_INVALID),
    "no expiry": (lambda keys: signed(keys, exp=None), Reason.TOKEN_INVALID),
    "expiry that is no time": (lambda keys: signed(keys, exp=True), Reason.TOKEN_INVALID),
    "not valid yet": (lambda keys: client_token(keys, clock=lambda: utc_now() + HOUR), Reason.TOKEN_INVALID),
    "expired": (lambda keys: client_token(keys, clock=lambda: utc_now() - HOUR), Reason.TOKEN_EXPIRED),
    "another audience": (lambda keys: client_token(keys, audience="elsewhere"), Reason.TOKEN_INVALID),
    "no tenant": (lambda keys: signed(keys, tenant=None), Reason.TOKEN_INVALID),
    "tenant that is a pattern": (lambda keys: signed(keys, tenant="%"), Reason.TOKEN_INVALID),
    "several tenants": (lambda keys: signed(keys, tenant=[TENANT, "other"]), Reason.TOKEN_INVALID),
    "unknown kind": (lambda keys: signed(keys, kind="root"), Reason.TOKEN_INVALID),
    "kind that its issuer may not give": (
        lambda keys: signed(keys, kind="service", sub="hook"),
        Reason.TOKEN_INVALID,
    ),
    "signature with padding": (lambda keys: client_token(keys) + "==", Reason.TOKEN_INVALID),
    "signature with a character that base64 ignores": (
        lambda keys: client_token(keys)[:-4] + "*" + client_token(keys)[-4:],
        Reason.TOKEN_INVALID,
    ),
    "expiry that is no number": (lambda keys: signed(keys, exp=float("nan")), Reason.TOKEN_INVALID),
    "expiry that never comes": (lambda keys: signed(keys, exp=float("inf")), Reason.TOKEN_INVALID),
    "expiry beyond any number": (lambda keys: signed(keys, exp=10**400), Reason.TOKEN_INVALID),
    "issued at no number": (
        lambda keys: signed(keys, iat=float("nan"), exp=10**11),
        Reason.TOKEN_INVALID,
    ),
    "issued long before 1970": (lambda keys: signed(keys, iat=-(10**400)), Reason.TOKEN_INVALID),
    "longer than any token": (lambda keys: client_token(keys) + "A" * 10_000, Reason.TOKEN_INVALID),
}


@pytest.mark.parametrize("form", TOKENS)
async def test_token_that_is_not_valid_opens_nothing(
    attacked: Attacked, channel: grpc.aio.Channel, form: str
) -> None:
    make, reason = TOKENS[form]
    token = make(attacked.keys)
    got = await refused(channel, RPC, b"", headers=(bearer(token),))
    assert (got.code, got.reason) == ("UNAUTHENTICATED", reason)
    assert token not in got.message
    assert attacked.reached == []


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Basic {}", "{}", "Token {}"])
async def test_header_without_a_bearer_token_opens_nothing(
    attacked: Attacked, channel: grpc.aio.Channel, header: str
) -> None:
    got = await refused(
        channel, RPC, b"", headers=(("authorization", header.format(client_token(attacked.keys))),)
    )
    assert (got.code, got.reason) == ("UNAUTHENTICATED", Reason.TOKEN_MISSING)
    assert attacked.reached == []


async def test_call_without_a_token_is_refused_before_a_message_is_read(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    """The callers send no message: what reads it first would wait for it."""
    never = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async def code(method: MethodDescriptor, *headers: tuple[str, str]) -> str:
        try:
            async for _ in channel.stream_stream(path_of(method))(silent(), metadata=headers, timeout=60):
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    def foreign(method: MethodDescriptor) -> tuple[str, str]:
        """Return the token of a caller that may not call the RPC."""
        others = set(CallerKind) - policy_of(method).callers - {CallerKind.SERVICE}
        return bearer(token_of(attacked.keys, min(others)))

    methods = METHODS.values()
    assert set(await asyncio.gather(*(code(method) for method in methods))) == {"UNAUTHENTICATED"}
    assert set(await asyncio.gather(*(code(method, foreign(method)) for method in methods))) == {
        "PERMISSION_DENIED"
    }


async def test_caller_that_the_contract_does_not_allow_is_refused(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    callers = [(kind, "") for kind in CallerKind if kind is not CallerKind.SERVICE]
    callers += [(CallerKind.SERVICE, service) for service in sorted(SERVICES)]
    opened = []
    for kind, service in callers:
        token = token_of(attacked.keys, kind, service)
        for name, method in METHODS.items():
            policy = policy_of(method)
            if kind in policy.callers and (not service or service in policy.services):
                continue
            got = await refused(channel, method, b"", headers=(bearer(token),))
            if (got.code, got.reason) != ("PERMISSION_DENIED", Reason.CALLER_NOT_ALLOWED):
                opened.append((kind, service, name, got))
    assert opened == []
    assert attacked.reached == []


@pytest.mark.parametrize("order", ["valid first", "valid last", "the same twice"])
async def test_call_with_two_authorization_headers_is_refused(
    attacked: Attacked, channel: grpc.aio.Channel, order: str
) -> None:
    got: dict[str, Refused] = {}
    for name, method in METHODS.items():
        valid = bearer(allowed_token(attacked.keys, method))
        other = valid if order == "the same twice" else bearer("nonsense")
        headers = (other, valid) if order == "valid last" else (valid, other)
        got[name] = await refused(channel, method, b"", headers=headers)
    assert {(one.code, one.reason) for one in got.values()} == {("UNAUTHENTICATED", Reason.TOKEN_INVALID)}
    assert attacked.reached == []
