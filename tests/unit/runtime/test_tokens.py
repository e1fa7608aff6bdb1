"""Tokens are signed and verified."""

import base64
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind, ClientRole
from spawnmesh_runtime.claims import MAX_LIMITS
from spawnmesh_runtime.jwks import JwksFile
from spawnmesh_runtime.tokens import HarnessClaim, TokenMinter, TokenVerifier

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Setup:
    def __init__(self, folder: Path, write_key: Callable[..., Path]) -> None:
        self.clock = Clock()
        self.folder = folder
        self.write_key = write_key
        for issuer in ("session", "hook", "runner", "client", "stranger"):
            write_key(issuer, Ed25519PrivateKey.generate())
        self.looks = 0.0
        self.verifier = TokenVerifier(
            JwksFile(folder / "jwks.json", monotonic=lambda: self.looks), clock=self.clock
        )

    def minter(self, issuer: str, **options: Any) -> TokenMinter:
        return TokenMinter(issuer, self.folder / f"{issuer}.pem", clock=self.clock, **options)

    def signed(self, issuer: str, **changes: Any) -> str:
        """Return a service token with some claims changed; None removes a claim."""
        now = int(self.clock().timestamp())
        claims = {"iss": issuer, "sub": issuer, "aud": "spawnmesh", "iat": now, "nbf": now, "exp": now + 60}
        claims |= {"kind": "service", "tenant": "acme"} | changes
        key = load_pem_private_key((self.folder / f"{issuer}.pem").read_bytes(), None)
        body = {name: value for name, value in claims.items() if value is not None}
        # Ed25519
        return jwt.encode(body, key, algorithm="EdDSA", headers={"kid": f"{issuer}-1"})  # type: ignore[arg-type]

    def refused(self, token: str) -> MeshError:
        with pytest.raises(MeshError) as caught:
            self.verifier.verify(token)
        assert token not in str(caught.value)
        return caught.value


@pytest.fixture
def setup(tmp_path: Path, write_key: Callable[..., Path]) -> Setup:
    return Setup(tmp_path, write_key)


def test_each_kind_of_token_gives_its_caller(setup: Setup) -> None:
    verify = setup.verifier.verify
    assert verify(setup.minter("hook").service_token("acme")) == Caller(
        CallerKind.SERVICE, "hook", "acme", service="hook"
    )
    assert verify(setup.minter("session").run_token("acme", "ses_1", "run_1", 7, 60)) == Caller(
        CallerKind.RUN, "run_1", "acme", "ses_1", "run_1", epoch=7
    )
    assert verify(setup.minter("runner").runner_token()) == Caller(CallerKind.RUNNER, "runner")
    assert verify(setup.minter("client").client_token("acme", "ann", 60)) == Caller(
        CallerKind.CLIENT, "ann", "acme", role=ClientRole.OPERATOR
    )
    reader = setup.minter("client").client_token("acme", "ann", 60, role=ClientRole.READER)
    assert verify(reader).role is ClientRole.READER
    assert verify(setup.minter("client").client_token("acme", "gate", 60, permissions=["b", "a"])) == Caller(
        CallerKind.CLIENT, "gate", "acme", permissions=frozenset({"a", "b"}), role=ClientRole.OPERATOR
    )
    admin = verify(setup.minter("client").admin_token("root", 60))
    assert admin == Caller(CallerKind.ADMIN, "root", role=ClientRole.ADMIN)


def test_token_of_a_run_says_whether_its_calls_count_in_budgets(setup: Setup) -> None:
    minter, verify = setup.minter("session"), setup.verifier.verify
    for has_budget in (True, False):
        token = minter.run_token("acme", "ses_1", "run_1", 7, 60, has_budget=has_budget)
        assert verify(token) == Caller(
            CallerKind.RUN, "run_1", "acme", "ses_1", "run_1", epoch=7, has_budget=has_budget
        )
    harness = HarnessClaim("tok_1", "00-1-2-01")
    held = verify(minter.run_token("acme", "ses_1", "run_1", 7, 60, harness=harness, has_budget=True))
    assert (held.harness_token_id, held.traceparent, held.has_budget) == ("tok_1", "00-1-2-01", True)


@pytest.mark.parametrize(("claim", "has_budget"), [(True, True), (False, False), (None, False)])
def test_claim_of_a_budget_is_optional(setup: Setup, claim: bool | None, has_budget: bool) -> None:
    token = setup.signed("session", kind="run", session="ses_1", run="run_1", epoch=1, budget=claim)
    assert setup.verifier.verify(token).has_budget is has_budget


@pytest.mark.parametrize("claim", ["true", 1, 0, [], {}])
def test_claim_of_a_budget_that_is_no_truth_value_is_refused(setup: Setup, claim: object) -> None:
    token = setup.signed("session", kind="run", session="ses_1", run="run_1", epoch=1, budget=claim)
    assert setup.refused(token).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("agent_id", ["", "a", "ann_2-b", "a" * 63])
def test_token_of_a_run_names_its_agent(setup: Setup, agent_id: str) -> None:
    token = setup.minter("session").run_token("acme", "ses_1", "run_1", 7, 60, agent_id=agent_id)
    assert setup.verifier.verify(token).agent_id == agent_id


@pytest.mark.parametrize("claim", ["*", "Ann", "a" * 64, "ann\n", 1, ["ann"], None])
def test_claim_of_an_agent_that_is_no_agent_id_is_refused(setup: Setup, claim: object) -> None:
    token = setup.signed("session", kind="run", session="ses_1", run="run_1", epoch=1, agent=claim)
    # A claim that is None is left out.
    if claim is None:
        assert setup.verifier.verify(token).agent_id == ""
    else:
        assert setup.refused(token).reason is Reason.TOKEN_INVALID


def test_token_without_a_run_has_neither_budget_nor_agent(setup: Setup) -> None:
    token = setup.signed("session", kind="service", budget=True, agent="ann")
    assert not setup.verifier.verify(token).has_budget
    assert setup.verifier.verify(token).agent_id == ""


def test_token_is_revoked_by_its_id_or_by_its_run(setup: Setup) -> None:
    verify = setup.verifier.verify
    assert verify(setup.minter("session").run_token("acme", "ses_1", "run_1", 7, 60)).revocation_key == (
        "acme/run_1"
    )
    client, runner = (
        verify(made).revocation_key
        for made in (
            setup.minter("client").client_token("acme", "ann", 60),
            setup.minter("client").runner_token("harness", 60, tenants=["acme"]),
        )
    )
    assert client.startswith("acme/tok_")
    assert runner.startswith("/tok_")
    assert verify(setup.minter("hook").service_token("acme")).revocation_key == ""


def test_service_token_without_a_tenant_names_none(setup: Setup) -> None:
    caller = setup.verifier.verify(setup.minter("hook").mesh_token())
    assert caller == Caller(CallerKind.SERVICE, "hook", "", service="hook")


@pytest.mark.parametrize("issuer", ["session", "hook", "runner", "client", "stranger"])
@pytest.mark.parametrize("kind", list(CallerKind))
def test_issuer_vouches_for_its_own_kinds_alone(setup: Setup, issuer: str, kind: CallerKind) -> None:
    allowed = {
        "session": {CallerKind.RUN, CallerKind.SERVICE},
        "hook": {CallerKind.SERVICE},
        "runner": {CallerKind.RUNNER},
        "client": {CallerKind.CLIENT, CallerKind.ADMIN},
        "stranger": set(),
    }
    token = setup.signed(issuer, kind=kind.value, session="ses_1", run="run_1", epoch=1)
    if kind in allowed[issuer]:
        assert setup.verifier.verify(token).kind is kind
    else:
        assert setup.refused(token).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("issuer", ["runner", "client"])
def test_token_of_a_runner_limits_its_tenants_and_agents(setup: Setup, issuer: str) -> None:
    made = setup.minter(issuer).runner_token("harness", 60, tenants=["globex", "acme"], agents=["a_1"])
    assert setup.verifier.verify(made) == Caller(
        CallerKind.RUNNER, "harness", tenants=frozenset({"acme", "globex"}), agents=frozenset({"a_1"})
    )


def test_token_of_a_runner_with_the_longest_limits_is_not_too_long(setup: Setup) -> None:
    tenants = [f"{number:02}{'t' * 37}" for number in range(MAX_LIMITS)]
    agents = [f"{number:02}{'a' * 61}" for number in range(MAX_LIMITS)]
    made = setup.minter("client").runner_token("harness", 60, tenants=tenants, agents=agents)
    assert setup.verifier.verify(made).agents == frozenset(agents)


@pytest.mark.parametrize("claims", [{}, {"agents": ["reviewer"]}])
def test_issuer_of_clients_makes_no_runner_of_all_tenants(setup: Setup, claims: dict[str, Any]) -> None:
    assert setup.refused(setup.signed("client", kind="runner", **claims)).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("issuer", ["session", "hook", "stranger"])
def test_services_make_no_token_of_a_runner(setup: Setup, issuer: str) -> None:
    token = setup.signed(issuer, kind="runner", tenants=["acme"])
    assert setup.refused(token).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("claim", ["tenants", "agents"])
@pytest.mark.parametrize(
    "limits", [[], "acme", {"acme": 1}, ["acme", ""], ["acme", 7], ["*"], ["a b"], ["acme"] * 33, True, 0]
)
def test_malformed_limit_of_a_runner_is_not_taken_for_none(setup: Setup, claim: str, limits: Any) -> None:
    claims = {"tenants": ["acme"], claim: limits}
    assert setup.refused(setup.signed("runner", kind="runner", **claims)).reason is Reason.TOKEN_INVALID


def test_service_cannot_speak_as_another(setup: Setup) -> None:
    assert setup.refused(setup.signed("hook", sub="session")).reason is Reason.TOKEN_INVALID


def test_key_of_one_issuer_cannot_sign_for_another(setup: Setup) -> None:
    assert "another issuer" in setup.refused(setup.signed("hook", iss="session", sub="session")).message


@pytest.mark.parametrize("claim", ["iss", "sub", "aud", "exp", "nbf", "iat", "kind"])
def test_token_without_a_claim_is_invalid(setup: Setup, claim: str) -> None:
    error = setup.refused(setup.signed("hook", **{claim: None}))
    assert error.reason is Reason.TOKEN_INVALID
    assert claim in error.message or claim in ("iss", "aud")


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": "soon"},
        {"exp": True},
        {"tenant": 7},
        {"tenant": ""},
        {"kind": "king"},
        {"kind": ["service"]},
        {"aud": "elsewhere"},
    ],
)
def test_malformed_claims_are_invalid(setup: Setup, changes: dict[str, Any]) -> None:
    assert setup.refused(setup.signed("hook", **changes)).reason is Reason.TOKEN_INVALID


@pytest.mark.parametrize("tenant", ["*", "Acme", "a", "a" * 40, "-acme", "acme\n", "ac me", "acmé", "a'b"])
@pytest.mark.parametrize("kind", ["client", "service", "run"])
def test_token_names_a_tenant_that_there_may_be(setup: Setup, kind: str, tenant: str) -> None:
    issuer = "client" if kind == "client" else "session"
    token = setup.signed(issuer, kind=kind, tenant=tenant, session="ses_1", run="run_1", epoch=1)
    error = setup.refused(token)
    assert error.reason is Reason.TOKEN_INVALID
    assert "the claim tenant is not a tenant id" in error.message


@pytest.mark.parametrize("epoch", [None, "1", True])
def test_run_token_needs_an_epoch(setup: Setup, epoch: Any) -> None:
    token = setup.signed("session", kind="run", session="ses_1", run="run_1", epoch=epoch)
    assert "epoch" in setup.refused(token).message


def test_unsigned_token_is_invalid(setup: Setup) -> None:
    _, body, _ = setup.signed("hook").split(".")
    for algorithm in ("none", "None"):
        header = (
            base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "hook-1"}).encode())
            .decode()
            .rstrip("=")
        )
        assert setup.refused(f"{header}.{body}.").reason is Reason.TOKEN_INVALID


def test_public_key_is_no_shared_secret(setup: Setup) -> None:
    key = load_pem_private_key((setup.folder / "hook.pem").read_bytes(), None)
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    claims = jwt.decode(setup.signed("hook"), options={"verify_signature": False})
    token = jwt.encode(claims, raw, algorithm="HS256", headers={"kid": "hook-1"})
    assert setup.refused(token).reason is Reason.TOKEN_INVALID


def test_changed_token_is_invalid(setup: Setup) -> None:
    header, _, signature = setup.signed("hook").split(".")
    _, body, _ = setup.signed("hook", tenant="globex").split(".")
    assert setup.refused(f"{header}.{body}.{signature}").reason is Reason.TOKEN_INVALID


def test_token_ends_at_its_second_also_when_it_was_verified_before(setup: Setup) -> None:
    token = setup.signed("hook")
    setup.clock.pass_seconds(59.9)
    setup.verifier.verify(token)
    setup.clock.pass_seconds(0.1)
    assert setup.refused(token).reason is Reason.TOKEN_EXPIRED
    assert setup.refused(token).reason is Reason.TOKEN_EXPIRED


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_clocks_may_differ_by_half_a_minute(setup: Setup, claim: str) -> None:
    now = int(setup.clock().timestamp())
    setup.verifier.verify(setup.signed("hook", **{claim: now + 30}))
    assert setup.refused(setup.signed("hook", **{claim: now + 31})).reason is Reason.TOKEN_INVALID


def test_service_token_is_kept_for_each_tenant_and_renewed_in_time(setup: Setup) -> None:
    minter = setup.minter("hook")
    token = minter.service_token("acme")
    assert setup.verifier.verify(minter.service_token("globex")).tenant_id == "globex"
    setup.clock.pass_seconds(239)
    assert minter.service_token("acme") == token
    setup.clock.pass_seconds(2)
    renewed = minter.service_token("acme")
    assert renewed != token
    setup.clock.pass_seconds(298)
    assert setup.verifier.verify(renewed).tenant_id == "acme"


def test_a_token_for_a_plugin_opens_that_plugin_alone(setup: Setup) -> None:
    minter, here, there = setup.minter("hook"), "grpc://one.example.com:7000", "grpc://two.example.com:7000"
    token = minter.service_token("acme", plugin=here)
    assert setup.verifier.for_plugin(here).verify(token) == Caller(
        CallerKind.SERVICE, "hook", "acme", service="hook"
    )
    for verifier in (setup.verifier, setup.verifier.for_plugin(there)):
        with pytest.raises(MeshError, match="another audience"):
            verifier.verify(token)
    with pytest.raises(MeshError, match=f"another audience than spawnmesh/{here}"):
        setup.verifier.for_plugin(here).verify(minter.service_token("acme"))


def test_a_token_for_a_plugin_is_one_of_a_mesh(setup: Setup) -> None:
    endpoint = "grpc://one.example.com:7000"
    token = setup.minter("hook", audience="staging").service_token("acme", plugin=endpoint)
    with pytest.raises(MeshError, match="another audience"):
        setup.verifier.for_plugin(endpoint).verify(token)


def test_service_token_is_kept_for_each_plugin(setup: Setup) -> None:
    minter = setup.minter("hook")
    plugin, other = (minter.service_token("acme", plugin=f"grpc://{one}:7000") for one in ("a", "b"))
    assert len({plugin, other, minter.service_token("acme")}) == 3
    assert minter.service_token("acme", plugin="grpc://a:7000") == plugin


def test_rsa_keys_work_too(setup: Setup, write_key: Callable[..., Path], rsa_key: Any) -> None:
    write_key("transcript", rsa_key)
    verifier = TokenVerifier(JwksFile(setup.folder / "jwks.json"), clock=setup.clock)
    token = setup.minter("transcript").service_token("acme")
    assert jwt.get_unverified_header(token)["alg"] == "RS256"
    assert verifier.verify(token).service == "transcript"


def test_changed_file_is_read_again_and_what_a_removed_key_signed_is_refused(setup: Setup) -> None:
    token, new = setup.signed("hook"), Ed25519PrivateKey.generate()
    setup.verifier.verify(token)
    setup.write_key("hook", new)
    setup.looks += 1
    assert setup.refused(token).reason is Reason.TOKEN_INVALID
    assert setup.verifier.verify(setup.signed("hook")).service == "hook"


def test_keys_stay_while_the_file_is_broken(setup: Setup) -> None:
    token = setup.signed("hook")
    path = setup.folder / "jwks.json"
    path.write_text("half a fi")
    os.utime(path, ns=(1, 1))
    setup.looks += 1
    assert setup.verifier.verify(token).service == "hook"


@pytest.mark.parametrize("permissions", ["unowned_append", {"a": 1}, ["a", 1], 7, True])
def test_permissions_that_are_no_list_of_names_are_refused(setup: Setup, permissions: Any) -> None:
    token = setup.signed("client", kind="client", sub="gate", permissions=permissions)
    assert setup.refused(token).reason is Reason.TOKEN_INVALID


def test_permissions_are_for_clients_alone(setup: Setup) -> None:
    assert (
        setup.verifier.verify(setup.signed("hook", permissions=["unowned_append"])).permissions == frozenset()
    )
