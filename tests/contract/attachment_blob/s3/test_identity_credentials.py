"""Credentials of S3 without keys: for a token of the pod's account, and from the agent of a cloud."""

import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
import urllib3
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError
from spawnmesh_attachment_blob.clients.renewed_credentials import S3_FAILURES
from spawnmesh_attachment_blob.clients.s3_calls import http_pool
from spawnmesh_attachment_blob.clients.service_credentials import IdentityCredentials
from spawnmesh_attachment_blob.clients.storage_check import check_storage
from spawnmesh_attachment_blob.clients.storage_probe import watching_storage
from spawnmesh_attachment_blob.clients.tenant_buckets import TenantBuckets
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_core.clock import utc_now
from spawnmesh_core.dependency_watch import DependencyFault, DependencyWatch
from spawnmesh_devstack.s3 import S3Endpoint, S3Server
from spawnmesh_devstack.watchdog import Watchdog

ACCOUNT = "system:serviceaccount:mesh:attachment-blob"
AUDIENCE = "sts.amazonaws.com"
SERVICE_ROLE = "arn:aws:iam::role/BlobRole"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
AGENT_TOKEN = "token of the pod"


def token_for(issuer: str, account: str = ACCOUNT) -> str:
    """Return a token as a cluster signs it for the account of a pod."""
    now = int(time.time())
    claims = {"iss": issuer, "sub": account, "aud": AUDIENCE, "iat": now, "exp": now + 3600}
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "1"})


@contextmanager
def serving(answer: Any) -> Iterator[str]:
    """Answer every GET with the JSON that `answer(path, authorization)` returns. Yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer(self.path, self.headers.get("authorization"))).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """Serve the cluster's public keys."""
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    keys = {"keys": [public | {"kid": "1", "use": "sig", "alg": "RS256"}]}
    with serving(lambda *_: keys) as address:
        yield address


@pytest.fixture(scope="module")
async def store(
    tmp_path_factory: pytest.TempPathFactory, watchdog: Watchdog, issuer: str
) -> AsyncIterator[S3Endpoint]:
    """Start a store that trusts the cluster: its tokens give the role of the service, and that role
    alone may assume the role of tenants.
    """
    folder = tmp_path_factory.mktemp("store")
    async with S3Server(folder / "data", folder / "log", watchdog, lambda line: None) as server:
        file = folder / "data" / "iam.json"
        configuration = json.loads(file.read_text())
        cluster = {"issuer": issuer, "clientId": AUDIENCE, "jwksUri": f"{issuer}/keys"}
        configuration["providers"] = [{"name": "cluster", "type": "oidc", "enabled": True, "config": cluster}]
        rights = {"Effect": "Allow", "Action": ["s3:*", "sts:AssumeRole"], "Resource": ["*"]}
        trusted = {
            "Effect": "Allow",
            "Principal": {"Federated": "cluster"},
            "Action": ["sts:AssumeRoleWithWebIdentity"],
            "Condition": {"StringEquals": {"oidc:sub": ACCOUNT}},
        }
        configuration["policies"].append(
            {"name": "Service", "document": {"Version": "2012-10-17", "Statement": [rights]}}
        )
        (tenants,) = configuration["roles"]
        (statement,) = tenants["trustPolicy"]["Statement"]
        statement["Principal"] = {"AWS": ["arn:aws:sts::assumed-role/BlobRole/attachment-blob"]}
        configuration["roles"].append(
            {
                "roleName": "BlobRole",
                "roleArn": SERVICE_ROLE,
                "attachedPolicies": ["Service"],
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trusted]},
            }
        )
        file.write_text(json.dumps(configuration))
        await server.stop()
        await server.start()
        yield server.endpoint


def settings_for(store: S3Endpoint, **identity: Any) -> AttachmentBlobSettings:
    """Return settings without keys."""
    return AttachmentBlobSettings(
        database_url="postgresql://",
        s3_endpoint=store.endpoint,
        sts_endpoint=store.sts_endpoint,
        sts_role_arn=store.role_arn,
        **identity,
    )


@pytest.fixture
def token_file(tmp_path: Path, issuer: str) -> Path:
    file = tmp_path / "token"
    file.write_text(token_for(issuer))
    return file


@pytest.fixture
def settings(store: S3Endpoint, token_file: Path) -> AttachmentBlobSettings:
    return settings_for(
        store,
        s3_credentials="web_identity",
        s3_web_identity_token_file=token_file,
        s3_role_arn=SERVICE_ROLE,
    )


@pytest.fixture
def http(settings: AttachmentBlobSettings) -> Iterator[urllib3.PoolManager]:
    with http_pool(settings) as pool:
        yield pool


def test_pod_without_keys_isolates_tenants(
    settings: AttachmentBlobSettings, http: urllib3.PoolManager
) -> None:
    """Buckets, tenants' credentials, and what they are refused: all that `helm test` tries."""
    results = list(check_storage(settings, http, TenantBuckets(settings, http)))
    assert {result.step: result.advice for result in results if result.advice} == {}
    assert results[-1].step == "be refused by STS"


async def test_pod_without_keys_has_its_dependencies(settings: AttachmentBlobSettings) -> None:
    watch = DependencyWatch()
    with watching_storage(watch, settings):
        assert {status.name: status.last_fault for status in await watch.look()} == {"s3": None, "sts": None}


def test_token_of_another_account_is_refused(
    settings: AttachmentBlobSettings, http: urllib3.PoolManager, token_file: Path, issuer: str
) -> None:
    token_file.write_text(token_for(issuer, account="system:serviceaccount:mesh:runner"))
    with pytest.raises(S3_FAILURES):
        TenantBuckets(settings, http).has_bucket("any")


def test_credentials_are_renewed_with_the_token_that_is_there_then(
    settings: AttachmentBlobSettings, http: urllib3.PoolManager, token_file: Path, issuer: str
) -> None:
    """A token expires after an hour, and the kubelet writes another one before."""
    passed = timedelta()
    own = IdentityCredentials(settings, http, lambda: utc_now() + passed)
    first = own.retrieve()
    assert own.retrieve() is first, "it is kept while it is good"
    token_file.write_text("a token that has expired")
    passed = timedelta(minutes=56)
    assert own.retrieve() is first, "it is good for some minutes more"
    token_file.write_text(token_for(issuer))
    passed = timedelta(minutes=57)
    assert own.retrieve().access_key != first.access_key


def test_agent_of_a_cloud_gives_the_credentials(
    store: S3Endpoint,
    settings: AttachmentBlobSettings,
    http: urllib3.PoolManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The variables and the protocol are those of EKS Pod Identity. Its credentials may end soon."""
    asked: list[str | None] = []
    lifetime = timedelta(seconds=150)

    def answer(_: str, authorization: str | None) -> dict[str, str]:
        asked.append(authorization)
        given = IdentityCredentials(settings, http, utc_now).retrieve()
        return {
            "AccessKeyId": given.access_key,
            "SecretAccessKey": given.secret_key,
            "Token": str(given.session_token),
            "Expiration": (utc_now() + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    (tmp_path / "agent-token").write_text(AGENT_TOKEN)
    with serving(answer) as agent:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent}/v1/credentials")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "agent-token"))
        of_agent = settings_for(store, s3_credentials="aws")
        results = list(check_storage(of_agent, http, TenantBuckets(of_agent, http)))
    assert [result.step for result in results if result.advice] == []
    assert asked == [AGENT_TOKEN], "one answer is used for all calls"


async def test_agent_that_is_away_is_a_dependency_that_is_down(
    store: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/v1/credentials")
    watch = DependencyWatch()
    with watching_storage(watch, settings_for(store, s3_credentials="aws")):
        faults = {status.name: status.last_fault for status in await watch.look()}
    assert faults == {"s3": DependencyFault.UNREACHABLE, "sts": DependencyFault.UNREACHABLE}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"s3_access_key": "key"},
        {"s3_credentials": "aws", "s3_access_key": "key", "s3_secret_key": "secret"},
        {"s3_credentials": "web_identity"},
        {"s3_credentials": "aws", "s3_web_identity_token_file": "/token"},
    ],
)
def test_credentials_of_two_kinds_or_of_none_are_refused(store: S3Endpoint, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="s3_credentials"):
        settings_for(store, **given)
