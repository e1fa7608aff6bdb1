"""Each RPC for clients and operators has a path, as the AIPs 127 and 131 to 136 shape it."""

import re

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from spawnmesh_gateway.http_rules import HttpRule, http_rules
from spawnmesh_gateway.rpcs import client_rpcs, gateway_rpcs
from spawnmesh_gateway.transcoding import descriptor_set

RULES = [rule for rpc in client_rpcs() for rule in http_rules(rpc)]
IDS = [rule.rpc.path.removeprefix("/spawnmesh.") for rule in RULES]
SEGMENT = r"(\*|[a-z][A-Za-z]*|\{[a-z_.]+\})"
PATH = re.compile(rf"/v1(/{SEGMENT})+(:[a-z][A-Za-z]*)?")
# These change nothing and have a body: the request is a conversation, or the answer is a secret.
READS_WITH_A_BODY = {
    "AssembleContext", "ClassifyError", "CreateDownloadUrl", "ExplainRoute", "PlanRetry", "SearchEntries",
}  # fmt: skip
BY_RESOURCE = {"Get": "get", "List": "get", "Delete": "delete", "Remove": "delete", "Update": "patch"}


def test_every_rpc_for_clients_and_operators_has_a_path_and_no_other_one_has() -> None:
    assert [rpc.path for rpc in client_rpcs() if not http_rules(rpc)] == []
    others = set(gateway_rpcs()) - set(client_rpcs())
    assert [rpc.path for rpc in others if http_rules(rpc)] == []


def test_no_two_rpcs_have_one_path() -> None:
    shapes = [(rule.verb, re.sub(r"\{[^}]*\}", "*", rule.path)) for rule in RULES]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_path_has_the_shape_of_a_resource(rule: HttpRule) -> None:
    assert PATH.fullmatch(rule.path)
    for variable in rule.variables:
        assert rule.field(variable).name == variable.rpartition(".")[2]
    assert rule.path.startswith("/v1/services/*/") == rule.rpc.is_shared


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_verb_says_what_the_call_does(rule: HttpRule) -> None:
    name = rule.rpc.method.name
    if rule.verb == "get":
        assert rule.rpc.only_reads
        assert rule.body == ""
    elif rule.rpc.only_reads:
        assert name in READS_WITH_A_BODY
    if rule.verb == "post":
        assert rule.body == "*"
    if rule.verb in ("put", "patch"):
        assert rule.rpc.is_repeatable
        assert rule.body in rule.rpc.method.input_type.fields_by_name
    for word, verb in BY_RESOURCE.items():
        if re.match(rf"{word}[A-Z]", name):
            assert rule.verb == verb


def test_contracts_of_the_gateway_are_complete_and_in_order() -> None:
    seen: set[str] = set()
    for file in FileDescriptorSet.FromString(descriptor_set()).file:
        assert set(file.dependency) <= seen, file.name
        seen.add(file.name)
    assert "google/rpc/error_details.proto" in seen
    assert "spawnmesh/session/v1/session_service.proto" in seen
