"""Every contract has the required parts, and the core repeats its values exactly."""

import re
from pathlib import Path

import pytest
from buf.validate import validate_pb2
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits, ClassLimits
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.reasons import RUN_REASONS, Reason
from spawnmesh_core.status import STATUS_OF
from spawnmesh_runtime.call_limits import ClassLimits as DefaultLimits
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_runtime.tokens import SERVICES

ROOT = Path(__file__).resolve().parents[3]
METHODS = [method for service in mesh_services() for method in service.methods]


def test_every_service_is_found() -> None:
    packages = {service.full_name.split(".")[1] for service in mesh_services()}
    assert packages == {service.replace("-", "_") for service in SERVICES} | {
        "audit",
        "deployment",
        "jobs",
        "operations",
        "tenancy",
    }


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_every_rpc_says_who_may_call_it(method: MethodDescriptor) -> None:
    policy = policy_of(method)
    assert policy.callers
    assert bool(policy.services) == (CallerKind.SERVICE in policy.callers)
    assert policy.services <= SERVICES


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_every_rpc_that_clients_or_harnesses_call_has_a_class(method: MethodDescriptor) -> None:
    policy = policy_of(method)
    declared = method.GetOptions().Extensions[policy_pb2.call_policy].rpc_class
    has_class = declared != policy_pb2.RPC_CLASS_UNSPECIFIED
    assert has_class == bool(policy.callers & {CallerKind.CLIENT, CallerKind.RUN, CallerKind.RUNNER})
    if CallerKind.CLIENT in policy.callers:
        assert policy.rpc_class is not None


def test_only_the_heartbeat_of_a_run_needs_no_place() -> None:
    steps = {
        method.name: policy_of(method).limited_step
        for method in METHODS
        if method.GetOptions().Extensions[policy_pb2.call_policy].rpc_class == policy_pb2.RPC_CLASS_RUN
    }
    assert [name for name, is_limited in steps.items() if not is_limited] == ["HeartbeatRun"]
    assert {"DispatchBeforeToolCall", "FinalizeRun", "AcquireWriter"} <= steps.keys()
    others = {method.name for method in METHODS if policy_of(method).limited_step} - steps.keys()
    assert others == set()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_every_list_of_a_request_has_a_bound(method: MethodDescriptor) -> None:
    unbounded = []
    for field in method.input_type.fields:
        given = field.GetOptions().Extensions[validate_pb2.field]
        rules = given.repeated
        is_set_of_enums = rules.unique and field.enum_type is not None
        if field.is_repeated and not (rules.max_items or given.map.max_pairs or is_set_of_enums):
            unbounded.append(field.name)
    assert unbounded == []


def test_classes_of_the_contract_are_those_with_limits() -> None:
    names = {name.removeprefix("RPC_CLASS_") for name in policy_pb2.RpcClass.keys()}  # noqa: SIM118 - no dict
    assert names - {"UNSPECIFIED", "RUN"} == {one.value for one in RpcClass}
    assert [field.name for field in CallLimits.DESCRIPTOR.fields] == [one.lower() for one in RpcClass]
    # Bursts are the operator's alone.
    of_tenants = set(DefaultLimits.model_fields) - {"burst_seconds"}
    assert {field.name for field in ClassLimits.DESCRIPTOR.fields} == of_tenants


def test_reasons_are_those_of_the_contract() -> None:
    names = {name.removeprefix("REASON_") for name in reason_pb2.Reason.keys()}  # noqa: SIM118 - no dict
    assert {reason.value for reason in Reason} - {"UNKNOWN"} == names - {"UNSPECIFIED"}


def test_every_reason_has_a_status_or_is_of_runs_only() -> None:
    assert set(STATUS_OF) == set(Reason) - RUN_REASONS - {Reason.UNKNOWN}


def test_contract_says_which_reasons_are_of_runs_only() -> None:
    contract = (ROOT / "protos/spawnmesh/errors/v1/reason.proto").read_text()
    of_runs = re.findall(r"^  // RUN\. .*\n(?:  //.*\n)*  REASON_(\w+) =", contract, re.MULTILINE)
    assert set(of_runs) == RUN_REASONS
