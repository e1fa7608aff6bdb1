"""During a key rotation the server accepts tokens of the old and the new key, until the old one is
removed.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from spawnmesh.hook.v1 import hook_handler_service_pb2_grpc as pb_grpc
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.clock import monotonic_seconds
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.key_files import make_keys
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import build_server
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

from tests.support.runtime.plugin import Plugin


@dataclass
class Mesh:
    """A server that reads `jwks.json` again before each call."""

    folder: Path
    ask: Any
    target: str = ""
    looks: float = field(default_factory=monotonic_seconds)

    def minter(self, issuer: str, of: str | None = None) -> TokenMinter:
        return TokenMinter(issuer, self.folder / f"{of or issuer}.pem")

    def replace(self, issuer: str) -> None:
        (self.folder / f"{issuer}.pem").unlink()
        make_keys(self.folder)

    def signed_as(self, key_id: str, issuer: str) -> str:
        claims = jwt.decode(self.minter(issuer).service_token("acme"), options={"verify_signature": False})
        key = load_pem_private_key((self.folder / f"{issuer}.pem").read_bytes(), None)
        # Ed25519
        return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": key_id})  # type: ignore[arg-type]

    async def let_in(self, token: str) -> bool:
        return await self.refusal(token) is None

    async def refusal(self, token: str) -> Reason | None:
        self.looks += 1
        try:
            await self.ask(self.target, token)
        except grpc.aio.AioRpcError as error:
            return Reason(error_from("plugin", error).reason)
        return None


@pytest.fixture
async def rotating(tmp_path: Path, process_named: Callable[..., Process], ask: Any) -> AsyncIterator[Mesh]:
    make_keys(tmp_path)
    mesh = Mesh(tmp_path, ask)
    whole = process_named("transcript")
    verifier = TokenVerifier(JwksFile(tmp_path / "jwks.json", monotonic=lambda: mesh.looks))
    server = build_server(Process("transcript", whole.settings, whole.minter, verifier, whole.tracer))
    pb_grpc.add_HookHandlerServiceServicer_to_server(Plugin(), server)
    mesh.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield mesh
    await server.stop(None)


async def test_old_and_new_key_are_accepted_until_the_old_one_is_removed(rotating: Mesh, events: Any) -> None:
    old = rotating.minter("hook")
    assert await rotating.let_in(old.service_token("acme"))
    rotating.replace("hook")
    new = rotating.minter("hook")
    for tenant in ("acme", "globex"):
        assert await rotating.let_in(new.service_token(tenant))
        assert await rotating.let_in(old.service_token(tenant))
    [taken] = [event for event in events if event["event"] == "jwks_updated"]
    assert len(taken["key_ids"]) == 8
    make_keys(rotating.folder, drop_old=True)
    assert await rotating.refusal(old.service_token("acme")) is Reason.TOKEN_INVALID
    assert await rotating.refusal(old.service_token("initech")) is Reason.TOKEN_INVALID
    assert await rotating.let_in(new.service_token("acme"))


async def test_key_is_good_under_the_id_of_the_jwks_alone(rotating: Mesh) -> None:
    content = json.loads((rotating.folder / "jwks.json").read_text())
    for member in content["keys"]:
        member["kid"] = f"of-{member['iss']}"
    (rotating.folder / "jwks.json").write_text(json.dumps(content))
    assert await rotating.let_in(rotating.signed_as("of-hook", "hook"))
    assert await rotating.refusal(rotating.signed_as("of-nobody", "hook")) is Reason.TOKEN_INVALID


async def test_key_of_one_issuer_is_never_good_for_another(rotating: Mesh) -> None:
    rotating.replace("hook")
    forged = rotating.minter("session", of="hook").service_token("acme")
    claims = jwt.decode(forged, options={"verify_signature": False})
    key = load_pem_private_key((rotating.folder / "hook.pem").read_bytes(), None)
    names = {member["kid"] for member in json.loads((rotating.folder / "jwks.json").read_text())["keys"]}
    for name in (*names, "hook-1", "session-1", jwt.get_unverified_header(forged)["kid"]):
        # Ed25519
        token = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": name})  # type: ignore[arg-type]
        assert await rotating.refusal(token) is Reason.TOKEN_INVALID


async def test_key_that_two_issuers_share_is_good_for_both(rotating: Mesh) -> None:
    content = json.loads((rotating.folder / "jwks.json").read_text())
    [hook] = [member for member in content["keys"] if member["iss"] == "hook"]
    for members in ([{**hook, "iss": "session"}, hook], [hook, {**hook, "iss": "session"}]):
        (rotating.folder / "jwks.json").write_text(json.dumps({"keys": members}))
        assert await rotating.let_in(rotating.minter("hook").service_token("acme"))
        as_session = rotating.minter("session", of="hook").service_token("acme")
        assert await rotating.refusal(as_session) is Reason.CALLER_NOT_ALLOWED, (
            "it is known, and has no business here"
        )
