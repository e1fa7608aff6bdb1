"""The OpenAPI document is valid, complete, and says what each refusal is."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate
from spawnmesh_core.status import STATUS_OF
from spawnmesh_gateway.http_rules import http_rules
from spawnmesh_gateway.openapi.comments import comments_of
from spawnmesh_gateway.openapi.document import openapi
from spawnmesh_gateway.rpcs import client_rpcs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document with the comments of the contracts."""
    folder = tmp_path_factory.mktemp("contracts")
    subprocess.run([sys.executable, ROOT / "libs/protos/bundle.py", folder], check=True)
    return openapi(comments_of(folder / "spawnmesh.binpb"))


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each operation by the verb and the path."""
    return {
        f"{verb} {path}": operation
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    }


def test_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    validate(document)


def test_every_rpc_with_a_path_is_an_operation(document: dict[str, Any]) -> None:
    wanted = set()
    for rpc in client_rpcs():
        for rule in http_rules(rpc):
            wanted.add(f"{rule.verb} {rule.path.replace('services/*/', 'services/{service}/')}")
    assert set(operations(document)) == wanted


def test_every_operation_says_what_it_does_and_how_it_is_refused(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        assert operation["description"].endswith("."), name
        assert {"200", "400", "401", "403", "404", "409", "429", "503", "default"} <= set(
            operation["responses"]
        ), name


def test_every_reason_is_in_the_refusal_of_its_status(document: dict[str, Any]) -> None:
    refusals = document["components"]["responses"]
    texts = "\n".join(one["description"] for one in refusals.values())
    assert [reason for reason in STATUS_OF if f"- {reason}" not in texts] == []
    assert "- TOKEN_EXPIRED" in refusals["Refusal401"]["description"]
    assert "- RUN_LEASE_LOST" in refusals["Refusal409"]["description"]
    info = document["components"]["schemas"]["ErrorInfo"]
    assert set(info["properties"]["reason"]["enum"]) == {str(reason) for reason in STATUS_OF}


def test_path_and_query_have_the_fields_that_the_body_lacks(document: dict[str, Any]) -> None:
    found = operations(document)
    sent = found["post /v1/sessions/{session_id}:sendMessage"]
    assert [one["name"] for one in sent["parameters"]] == ["session_id"]
    body = sent["requestBody"]["content"]["application/json"]["schema"]
    assert {"request_id", "text"} <= set(body["properties"])
    assert "session_id" not in body["properties"]
    waited = found["get /v1/sessions/{session_id}:wait"]
    assert [(one["name"], one["in"]) for one in waited["parameters"]] == [
        ("session_id", "path"),
        ("timeout", "query"),
    ]
    changed = found["patch /v1/agents/{agent.agent_id}"]
    assert [(one["name"], one["in"]) for one in changed["parameters"]] == [
        ("agent.agent_id", "path"),
        ("update_mask", "query"),
        ("allow_missing", "query"),
    ]
    agent = changed["requestBody"]["content"]["application/json"]["schema"]
    assert agent["$ref"].endswith("session.v1.AgentProfile")


def test_streams_are_events_and_uploads_are_lists(document: dict[str, Any]) -> None:
    found = operations(document)
    watched = found["get /v1/sessions/{session_id}:watch"]["responses"]["200"]["content"]
    assert list(watched) == ["text/event-stream"]
    upload = found["post /v1/uploads"]["requestBody"]["content"]["application/json"]["schema"]
    assert upload["type"] == "array"
