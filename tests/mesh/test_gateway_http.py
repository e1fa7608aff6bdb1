"""JSON, server-sent events, gRPC-Web and Connect through the gateway, by a plain HTTP client."""

import base64
import hashlib
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import google_crc32c
import psutil
import pytest
from jsonschema import Draft202012Validator, ValidationError
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.members import SERVICES
from spawnmesh_devstack.stack import Stack
from spawnmesh_gateway.openapi.document import openapi

from tests.support.mesh.new_tenant import new_tenant
from tests.support.mesh.plain_http import ALLOWED_ORIGIN, Answer, request
from tests.support.waiting import eventually

NOBODY = f"ses_{26 * '0'}"
GET_SESSION = "/spawnmesh.session.v1.SessionService/GetSession"
LIST_SESSIONS = "/spawnmesh.session.v1.SessionService/ListSessions"


@dataclass(frozen=True)
class Client:
    """A client of one tenant that speaks HTTP."""

    address: str
    token: str

    async def call(self, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await request(self.address, verb, path, token=self.token, body=body, headers=named)

    async def spawned(self, **fields: Any) -> str:
        """Spawn a session and return its id."""
        body = {"request_id": uuid4().hex, "task": "Say hello.", **fields}
        answer = await self.call("POST", "/v1/sessions", body)
        assert answer.status == 200, answer.body
        return str(answer.as_json["session"]["session_id"])


@pytest.fixture
async def client(stack: Stack, gateway: str) -> Client:
    return Client(gateway, stack.client_token(await new_tenant(stack)))


async def test_session_is_spawned_waited_for_listed_and_deleted(client: Client) -> None:
    session_id = await client.spawned(label="by-http")
    waited = await client.call("GET", f"/v1/sessions/{session_id}:wait?timeout=60s")
    assert waited.as_json["session"]["latest_run"]["state"] == "RUN_STATE_SUCCEEDED"
    assert waited.headers["content-type"] == "application/json"
    listed = await client.call("GET", "/v1/sessions?page_size=10")
    assert [one["session_id"] for one in listed.as_json["sessions"]] == [session_id]
    deleted = await client.call("DELETE", f"/v1/sessions/{session_id}")
    assert deleted.status == 200, deleted.body
    assert (await client.call("GET", f"/v1/sessions/{session_id}")).status == 404


async def test_watch_is_server_sent_events(client: Client) -> None:
    session_id = await client.spawned()
    watched = await client.call("GET", f"/v1/sessions/{session_id}:watch")
    assert watched.headers["content-type"] == "text/event-stream"
    numbers = [int(one["session_event"]["number"]) for one in watched.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert watched.events[-1]["session_event"]["kind"] == "SESSION_EVENT_KIND_CLOSED"
    cursor = watched.events[-2]["cursor"]
    for behind in (f"cursor={cursor}", f"after_event={numbers[-2]}"):
        later = await client.call("GET", f"/v1/sessions/{session_id}:watch?{behind}")
        assert later.events == watched.events[-1:]


async def test_resource_is_written_from_the_body_and_named_by_the_path(client: Client) -> None:
    whole = {"system_prompt": "Be brief.", "max_turn_count": 3}
    written = await client.call("PATCH", "/v1/agents/clerk?allow_missing=true", whole)
    assert written.status == 200, written.body
    part = {"system_prompt": "Be kind.", "max_turn_count": 9, "models": ["a/b"]}
    named = "/v1/agents/clerk?update_mask=systemPrompt,models"
    assert (await client.call("PATCH", named, part)).status == 200
    agent = (await client.call("GET", "/v1/agents/clerk")).as_json["agent"]
    assert (agent["agent_id"], agent["system_prompt"], agent["models"]) == ("clerk", "Be kind.", ["a/b"])
    assert agent["max_turn_count"] == 3
    stale = {"etag": written.as_json["agent"]["etag"], "system_prompt": "Be quick."}
    refused = await client.call("PATCH", "/v1/agents/clerk", stale)
    assert (refused.status, "ETAG_DIFFERS" in str(refused.body)) == (409, True)


async def test_file_is_uploaded_as_a_list_of_messages_and_read_back(client: Client) -> None:
    data = b"the code word is heron"
    upload_id = f"upl_{new_id(IdKind.SESSION)[4:]}"
    crc = int.from_bytes(google_crc32c.Checksum(data).digest(), "big")
    sha256 = hashlib.sha256(data).hexdigest()
    messages = [
        {"spec": {"upload_id": upload_id, "name": "a.txt", "size_bytes": len(data), "sha256": sha256}},
        {"chunk": {"data": base64.b64encode(data).decode(), "crc32c": crc}},
        {"finish": {}},
    ]
    uploaded = await client.call("POST", "/v1/uploads", messages)
    assert uploaded.as_json["upload"]["state"] == "UPLOAD_STATE_COMPLETE"
    session_id = await client.spawned(uploads=[{"upload_id": upload_id}])
    listed = await client.call("GET", f"/v1/attachmentSets?session_id={session_id}")
    (files,) = listed.as_json["sets"]
    read = await client.call("GET", f"/v1/attachmentSets/{files['set_id']}/files/a.txt:read")
    assert b"".join(base64.b64decode(one.get("data", "")) for one in read.events) == data


@pytest.mark.parametrize("service", SERVICES)
async def test_path_names_the_service_where_all_of_them_have_the_rpc(
    stack: Stack, gateway: str, service: str
) -> None:
    answer = await request(gateway, "GET", f"/v1/services/{service}/replica", token=stack.admin_token())
    assert answer.as_json["replica"]["service"] == service


@pytest.mark.parametrize(
    ("verb", "path", "body", "status", "reason", "domain"),
    [
        ("GET", f"/v1/sessions/{NOBODY}", None, 404, "NOT_FOUND", "session.spawnmesh"),
        ("GET", f"/v1/sessions/{NOBODY}:watch", None, 404, "NOT_FOUND", "session.spawnmesh"),
        ("GET", "/v1/sessions/abc", None, 400, "INVALID_REQUEST", "session.spawnmesh"),
        ("POST", "/v1/sessions", b"{bad", 400, "INVALID_REQUEST", "gateway.spawnmesh"),
        ("GET", "/v1/sessions?nothing=1", None, 400, "INVALID_REQUEST", "gateway.spawnmesh"),
        ("GET", "/v1/nothing", None, 404, "UNKNOWN_RPC", "gateway.spawnmesh"),
        ("GET", "/", None, 404, "UNKNOWN_RPC", "gateway.spawnmesh"),
        ("GET", "/v1/services/runner/replica", None, 400, "INVALID_REQUEST", "gateway.spawnmesh"),
        ("POST", "/v1/sessions", b" " * (17 * 2**20), 413, "MESSAGE_TOO_LARGE", "gateway.spawnmesh"),
        ("GET", "/v1/services/hook/jobs", None, 403, "CALLER_NOT_ALLOWED", "hook.spawnmesh"),
        ("GET", "/v1/tenants", None, 403, "CALLER_NOT_ALLOWED", "session.spawnmesh"),
    ],
    ids=[
        "not-found", "not-found-stream", "malformed-id", "malformed-json", "unknown-query", "unknown-path",
        "root", "unknown-service", "too-large", "operators-jobs", "operators-tenants",
    ],
)  # fmt: skip
async def test_refusal_is_json_with_its_reason(
    client: Client, verb: str, path: str, body: Any, status: int, reason: str, domain: str
) -> None:
    answer = await client.call(verb, path, body)
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.as_json["message"]
    assert (answer.info["reason"], answer.info["domain"]) == (reason, domain)


async def test_malformed_fields_are_named(client: Client) -> None:
    answer = await client.call("POST", "/v1/sessions", {"task": "", "request_id": "a"})
    kind = "type.googleapis.com/google.rpc.BadRequest"
    (bad,) = [one for one in answer.as_json["details"] if one["@type"] == kind]
    assert {one["field"] for one in bad["field_violations"]} == {"task"}


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no.token.this"}], ids=["missing", "forged"]
)
async def test_call_without_a_good_token_is_refused(gateway: str, headers: dict[str, str]) -> None:
    answer = await request(gateway, "GET", "/v1/sessions", headers=headers)
    assert answer.status == 401
    assert answer.info["reason"] == ("TOKEN_INVALID" if headers else "TOKEN_MISSING")


async def test_service_that_is_away_is_503_with_a_reason(stack: Stack, client: Client) -> None:
    await stack.processes["model-router"].kill()
    try:
        answer = await client.call("GET", "/v1/models")
    finally:
        await stack.restart("model-router")
    assert (answer.status, answer.info["reason"]) == (503, "DEPENDENCY_UNAVAILABLE")

    async def answers() -> bool:
        return (await client.call("GET", "/v1/models")).status == 200

    await eventually(answers)


def framed(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


async def test_grpc_web(client: Client) -> None:
    asked = framed(session_rpc.ListSessionsRequest(page_size=5).SerializeToString())
    session_id = await client.spawned()
    answer = await client.call("POST", LIST_SESSIONS, asked, content_type="application/grpc-web+proto")
    (size,) = struct.unpack(">I", answer.body[1:5])
    listed = session_rpc.ListSessionsResponse.FromString(answer.body[5 : 5 + size])
    assert [one.session_id for one in listed.sessions] == [session_id]
    assert b"grpc-status:0" in answer.body[5 + size :]

    asked = framed(session_rpc.GetSessionRequest(session_id=NOBODY).SerializeToString())
    refused = await client.call("POST", GET_SESSION, asked, content_type="application/grpc-web+proto")
    assert refused.headers["grpc-status"] == "5"
    assert b"NOT_FOUND" in base64.b64decode(refused.headers["grpc-status-details-bin"] + "==")


async def test_connect(client: Client) -> None:
    session_id = await client.spawned()
    headers = {"content_type": "application/proto", "connect_protocol_version": "1"}
    asked = session_rpc.ListSessionsRequest(page_size=5).SerializeToString()
    answer = await client.call("POST", LIST_SESSIONS, asked, **headers)
    listed = session_rpc.ListSessionsResponse.FromString(answer.body)
    assert [one.session_id for one in listed.sessions] == [session_id]

    asked = session_rpc.GetSessionRequest(session_id=NOBODY).SerializeToString()
    refused = await client.call("POST", GET_SESSION, asked, **headers)
    assert (refused.status, refused.as_json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("content_type", "body", "headers"),
    [
        ("application/grpc-web+proto", framed(b""), {}),
        ("application/grpc", framed(b""), {}),
        ("application/proto", b"", {"connect_protocol_version": "1"}),
        ("application/json", b"{}", {}),
    ],
    ids=["grpc-web", "grpc", "connect", "json"],
)
async def test_rpc_between_services_is_refused_in_every_protocol(
    client: Client, content_type: str, body: bytes, headers: dict[str, str]
) -> None:
    path = "/spawnmesh.attachment_blob.v1.BlobService/ReleaseBlob"
    answer = await client.call("POST", path, body, content_type=content_type, **headers)
    code = answer.headers.get("grpc-status") or str(answer.as_json["code"])
    assert code in ("12", "unimplemented"), answer


async def test_pages_of_the_allowed_origins_alone_may_call(client: Client) -> None:
    for path in ("/v1/sessions", LIST_SESSIONS):
        for origin, allowed in ((ALLOWED_ORIGIN, ALLOWED_ORIGIN), ("https://evil.example.com", None)):
            asked = {"origin": origin, "access_control_request_method": "GET"}
            preflight = await client.call("OPTIONS", path, **asked)
            assert preflight.headers.get("access-control-allow-origin") == allowed
            called = await client.call("GET", "/v1/sessions", origin=origin)
            assert called.headers.get("access-control-allow-origin") == allowed
            assert "access-control-allow-credentials" not in called.headers


async def test_health_is_answered_without_a_token(gateway: str) -> None:
    assert (await request(gateway, "GET", "/healthz")).status == 200


def conforms(document: dict[str, Any], value: Any, schema: str) -> None:
    """Check a value with a schema of the document. Unknown fields are not accepted."""
    described = document["components"]["schemas"]
    closed = {
        name: {**one, "additionalProperties": False} if "properties" in one else one
        for name, one in described.items()
    }
    root = {"components": {"schemas": closed}, "$ref": f"#/components/schemas/{schema}"}
    Draft202012Validator(root).validate(value)


async def test_answers_have_the_shape_of_the_openapi_document(client: Client) -> None:
    document = openapi({})
    session_id = await client.spawned(label="shape")
    waited = await client.call("GET", f"/v1/sessions/{session_id}:wait?timeout=60s")
    conforms(document, waited.as_json, "session.v1.WaitSessionResponse")
    listed = await client.call("GET", "/v1/sessions")
    conforms(document, listed.as_json, "session.v1.ListSessionsResponse")
    entries = await client.call("GET", f"/v1/transcripts/{session_id}/entries")
    conforms(document, entries.as_json, "transcript.v1.ListEntriesResponse")
    for event in (await client.call("GET", f"/v1/sessions/{session_id}:watch")).events:
        conforms(document, event, "session.v1.WatchSessionResponse")
    for path in (f"/v1/sessions/{NOBODY}", "/v1/sessions/abc", "/v1/nothing"):
        refused = (await client.call("GET", path)).as_json
        conforms(document, refused, "Status")
        with pytest.raises(ValidationError):
            conforms(document, {**refused, "details": [{"@type": "other"}]}, "Status")


async def test_body_above_the_limit_takes_no_memory(stack: Stack, client: Client) -> None:
    process = psutil.Process(stack.processes["gateway"].pid)
    await client.call("POST", "/v1/sessions", b" " * (15 * 2**20))  # What one body takes is not given back.
    before = process.memory_info().rss
    body = b'{"task": "' + b"x" * (250 * 2**20) + b'"}'
    for _ in range(2):
        with suppress(ConnectionError):  # The refusal closes the connection while the body is sent.
            assert (await client.call("POST", "/v1/sessions", body)).status == 413
    assert process.memory_info().rss - before < 100 * 2**20
    assert (await client.call("GET", "/v1/sessions")).status == 200
