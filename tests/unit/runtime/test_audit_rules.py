"""Which RPCs are in the audit log, and what names their resources."""

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import UploadFileRequest
from spawnmesh.attachment_blob.v1.upload_pb2 import UploadSpec
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun, ClaimRunsRequest, ClaimRunsResponse
from spawnmesh.session.v1.session_pb2 import Run
from spawnmesh.session.v1.session_service_pb2 import SendMessageRequest, SendMessageResponse
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_core.audit_event import resource
from spawnmesh_runtime.call import Call
from spawnmesh_runtime.interceptors.audit import ResourceNames
from spawnmesh_runtime.methods import policy_of

METHODS = {
    f"{service.full_name.removeprefix('spawnmesh.')}/{method.name}": method
    for service in mesh_services()
    for method in service.methods
}
QUESTION = "asks plugins about a call that is recorded itself"
STEP = "asks plugins about a step of a run"
PLUGIN = "plugins serve it, and they have no audit log"
LEFT_OUT = {
    "hook.v1.HookService/DispatchBeforeAgentFinalize": QUESTION,
    "hook.v1.HookService/DispatchBeforeCompaction": QUESTION,
    "hook.v1.HookService/DispatchBeforeSpawn": QUESTION,
    "hook.v1.HookService/DispatchDeliveryTarget": QUESTION,
    "hook.v1.HookService/PublishEvents": "reports events to observers",
    "hook.v1.RunHookService/DispatchBeforeModelResolve": STEP,
    "hook.v1.RunHookService/DispatchBeforePromptBuild": STEP,
    "hook.v1.RunHookService/DispatchBeforeToolCall": STEP,
    "session.v1.BudgetService/AdmitModelCall": "a step of a model call",
    "session.v1.BudgetService/RecordModelCall": "a step of a model call",
    "session.v1.RunService/AcknowledgeInbox": "confirms the receipt of messages that SendMessage recorded",
    "session.v1.RunService/ReportRunEvents": "reports what happened to a run, as events of the session",
    "session.v1.RunService/HeartbeatRun": "renews a lease",
    "transcript.v1.LiveService/WriteDraft": "a draft is no part of the transcript",
    "transcript.v1.SearchService/SearchEntries": "reads; it only adds to the index of words",
    "transcript.v1.TranscriptService/AcquireWriter": "takes or returns a lease",
    "transcript.v1.TranscriptService/OpenWindow": "takes or returns a lease",
    "transcript.v1.TranscriptService/ReleaseWriter": "takes or returns a lease",
}
"""The RPCs with side effects whose calls are not recorded, and why. The denied ones are."""

WITHOUT_SIDE_EFFECTS = {
    "attachment_blob.v1.AttachmentBlobService/CreateDownloadUrl",
    "transcript.v1.ArchiveService/ExportTranscript",
}
"""The RPCs without side effects that are recorded: they hand out content."""

WITHOUT_RESOURCES = {
    "hook.v1.HookService/RelayNativeStop": "the session of the harness is in an event that is content",
    "session.v1.TenantService/EnableSharedHooks": "all tenants",
    "tenancy.v1.TenantParticipantService/PrepareTenant": "the tenant of the caller",
    "tenancy.v1.TenantParticipantService/PurgeTenant": "the tenant of the caller",
}

# Which fields are ids is a matter of their names. A field with content would be in this list.
NAMES = {
    "agent_id", "answer_entry_id", "approval_id", "blob_id", "budget_session_id", "draft_entry_id",
    "entry_id", "event_id", "firing_id", "key", "kind", "name", "parent_entry_id", "parent_run_id", "parent_session_id", "run_id", "runner_id", "session_id",
    "set_id", "source_session_id", "target", "tenant_id", "token_id", "upload_id", "uploader_session_id",
    "writer_run_id",
}  # fmt: skip


def declared(method: MethodDescriptor) -> policy_pb2.AuditPolicy:
    audit: policy_pb2.AuditPolicy = method.GetOptions().Extensions[policy_pb2.call_policy].audit
    return audit


def names_of(method: MethodDescriptor) -> ResourceNames:
    return ResourceNames(method, policy_of(method).audit)


def test_rpcs_that_are_left_out_are_those_that_are_listed_with_a_reason() -> None:
    left_out = {name: declared(method).left_out for name, method in METHODS.items()}
    plugins = {name: why for name, why in left_out.items() if "HookHandlerService" in name}
    assert set(plugins.values()) == {PLUGIN}
    assert {name: why for name, why in left_out.items() if why and name not in plugins} == LEFT_OUT


def test_every_other_rpc_with_side_effects_is_recorded() -> None:
    recorded = {name for name, method in METHODS.items() if policy_of(method).audit.is_recorded}
    changing = {
        name
        for name, method in METHODS.items()
        if method.GetOptions().idempotency_level != MethodOptions.NO_SIDE_EFFECTS
    }
    assert recorded - changing == WITHOUT_SIDE_EFFECTS
    assert {name for name in changing - recorded if "HookHandlerService" not in name} == set(LEFT_OUT)


def test_recorded_rpcs_name_their_resources_by_ids() -> None:
    recorded = {name: method for name, method in METHODS.items() if policy_of(method).audit.is_recorded}
    without = {name for name, method in recorded.items() if not names_of(method).fields}
    assert without == set(WITHOUT_RESOURCES)
    last = {field.rpartition(".")[2] for method in recorded.values() for field in names_of(method).fields}
    assert last == NAMES


@pytest.mark.parametrize("name", METHODS)
def test_fields_that_a_policy_names_exist(name: str) -> None:
    assert set(declared(METHODS[name]).resource_fields) <= set(names_of(METHODS[name]).fields)


@pytest.mark.parametrize(
    "value", ["please sum this", "a" * 200, "Müller", "a\nb", "", "eyJhbGciOiJFZERTQSJ9." + "a" * 120]
)
def test_value_that_does_not_look_like_an_id_is_hashed(value: str) -> None:
    name, _, shown = resource("agent_id", value).partition("=")
    assert name == "agent_id"
    assert shown.startswith("sha256:")
    assert not value or value not in shown


def test_id_is_shown() -> None:
    assert resource("session_id", "ses_01k") == "session_id=ses_01k"


def noted(name: str, request: Message | None = None, response: Message | None = None) -> tuple[str, ...]:
    """Return the resources that a call with these messages names."""
    call, names = Call(context=None), names_of(METHODS[name])  # type: ignore[arg-type]
    if request is not None:
        names.note_request(call, request)
    if response is not None:
        names.note_response(call, response)
    return call.resources


def test_ids_are_read_from_messages_within_messages_and_from_lists() -> None:
    runs = [ClaimedRun(run=Run(run_id=f"run_{number}")) for number in range(20)]
    found = noted(
        "session.v1.RunService/ClaimRuns", ClaimRunsRequest(runner_id="one"), ClaimRunsResponse(runs=runs)
    )
    assert found == ("runner_id=one", *(f"run_id=run_{number}" for number in range(15)))
    spec = UploadFileRequest(spec=UploadSpec(upload_id="upl_1", name="plan.md"))
    upload = "attachment_blob.v1.AttachmentBlobService/UploadFile"
    assert noted(upload, spec) == ("upload_id=upl_1",)
    assert noted(upload, UploadFileRequest()) == ()


def test_id_that_request_and_response_name_is_named_once() -> None:
    send = "session.v1.SessionService/SendMessage"
    request = SendMessageRequest(session_id="ses_1", request_id="any", text="a text")
    response = SendMessageResponse(run=Run(run_id="run_1", session_id="ses_1"))
    assert noted(send, request, response) == ("session_id=ses_1", "run_id=run_1")
