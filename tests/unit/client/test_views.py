"""Views have the fields and the words of the contracts."""

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2, attachment_pb2, upload_pb2
from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import delivery_pb2, event_pb2, hook_service_pb2, webhook_pb2
from spawnmesh.model_router.v1 import failures_pb2, generation_pb2, routing_pb2
from spawnmesh.session.v1 import (
    approval_pb2,
    budget_pb2,
    schedule_pb2,
    session_pb2,
    session_service_pb2,
    tenant_pb2,
)
from spawnmesh.transcript.v1 import entry_pb2, search_service_pb2
from spawnmesh_client import (
    approval_views,
    budget_views,
    failures,
    resource_views,
    schedule_views,
    views,
    webhook_views,
)
from spawnmesh_client.entries import entry_view
from spawnmesh_client.outcomes import RunFailed, RunNotDone
from spawnmesh_client.session import Session
from spawnmesh_client.view_of import enum_prefix, number_of, view_of
from spawnmesh_core.reasons import Reason

MESSAGES: dict[type[Any], Any] = {
    views.Usage: message_pb2.TokenUsage,
    views.RunDelay: session_pb2.RunDelay,
    views.Run: session_pb2.Run,
    views.AttachedFile: attachment_pb2.AttachmentFile,
    views.AttachmentReceipt: session_pb2.AttachmentReceipt,
    views.AttachmentSet: attachment_pb2.AttachmentSet,
    views.StoredUpload: upload_pb2.Upload,
    views.DownloadUrl: attachment_blob_service_pb2.CreateDownloadUrlResponse,
    views.SessionEvent: session_pb2.SessionEvent,
    views.ToolCall: message_pb2.ToolCall,
    views.SearchHit: search_service_pb2.SearchHit,
    views.Deleted: session_service_pb2.DeleteSessionResponse,
    approval_views.ApprovalPolicy: approval_pb2.ApprovalPolicy,
    approval_views.Question: approval_pb2.Question,
    budget_views.UsageSum: budget_pb2.UsageTotal,
    resource_views.Agent: tenant_pb2.AgentProfile,
    resource_views.Model: routing_pb2.ModelInfo,
    resource_views.Cooldown: routing_pb2.Cooldown,
    resource_views.ProviderHealth: routing_pb2.ProviderHealth,
    resource_views.Plugin: hook_service_pb2.Plugin,
    resource_views.PluginDelivery: delivery_pb2.Delivery,
    resource_views.TenantDeletion: tenant_pb2.TenantDeletion,
    resource_views.Tenant: tenant_pb2.Tenant,
    failures.FailureRow: failures_pb2.FailureRow,
    schedule_views.ScheduleFiring: schedule_pb2.ScheduleFiring,
    webhook_views.WebhookAttempt: webhook_pb2.WebhookAttempt,
}
ENUMS: dict[Any, Any] = {
    views.SessionState: session_pb2.SessionState,
    views.RunState: session_pb2.RunState,
    views.SessionMode: session_pb2.SessionMode,
    views.ContextMode: session_pb2.ContextMode,
    views.Cleanup: session_pb2.Cleanup,
    views.Runtime: session_pb2.Runtime,
    views.ThinkingLevel: thinking_pb2.ThinkingLevel,
    views.EventKind: session_pb2.SessionEventKind,
    views.ReceiptWarning: session_pb2.ReceiptWarning,
    views.SetState: attachment_pb2.SetState,
    views.UploadState: upload_pb2.UploadState,
    views.EntryKind: entry_pb2.EntryKind,
    views.Role: message_pb2.Role,
    approval_views.ApprovalState: approval_pb2.ApprovalState,
    approval_views.ExpiryPolicy: approval_pb2.ExpiryPolicy,
    budget_views.BudgetLimit: budget_pb2.BudgetLimit,
    failures.FailureDimension: failures_pb2.FailureDimension,
    failures.FailureReason: generation_pb2.FailoverReason,
    resource_views.CooldownScope: routing_pb2.CooldownScope,
    resource_views.ProviderKind: routing_pb2.ProviderKind,
    resource_views.DeliveryDecision: delivery_pb2.DeliveryDecision,
    resource_views.HookKind: event_pb2.HookKind,
    resource_views.FailurePolicy: hook_service_pb2.FailurePolicy,
    schedule_views.OverlapPolicy: schedule_pb2.OverlapPolicy,
    schedule_views.CatchUpPolicy: schedule_pb2.CatchUpPolicy,
    schedule_views.FiringOutcome: schedule_pb2.FiringOutcome,
    webhook_views.WebhookDeliveryState: webhook_pb2.WebhookDeliveryState,
    resource_views.Grant: hook_service_pb2.Grant,
    resource_views.TenantState: tenant_pb2.TenantState,
}


def filled(message: Any) -> Any:
    """Set every field of the message: the last enum value, one item of a list, time 1 s."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        many = field.is_repeated
        target = getattr(message, field.name)
        if field.message_type is not None:
            one = target.add() if many else target
            one.SetInParent()
            if field.message_type.full_name.startswith("google.protobuf."):
                one.FromSeconds(1)
            else:
                filled(one)
        elif many:
            target.append(value_for(field))
        else:
            setattr(message, field.name, value_for(field))
    return message


def value_for(field: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    return {field.CPPTYPE_STRING: "x", field.CPPTYPE_BOOL: True}.get(field.cpp_type, 7)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_view_has_every_field_of_a_filled_and_of_an_empty_message(kind: type[Any]) -> None:
    view = view_of(kind, filled(MESSAGES[kind]()))
    for field in dataclasses.fields(kind):
        value = getattr(view, field.name)
        assert value, field.name
        assert value != "UNKNOWN", field.name
        if field.name.endswith("_time"):
            assert value == datetime.fromtimestamp(1, UTC)
    empty = view_of(kind, MESSAGES[kind]())
    assert not any(
        isinstance(getattr(empty, field.name), datetime)
        for field in dataclasses.fields(kind)
        if "None" in str(field.type)
    )


@pytest.mark.parametrize("words", ENUMS, ids=lambda words: words.__name__)
def test_words_are_those_of_the_contract(words: Any) -> None:
    enum = ENUMS[words].DESCRIPTOR
    assert {"UNKNOWN", *(one.name.removeprefix(enum_prefix(enum)) for one in enum.values if one.number)} == {
        word.value for word in words
    }


def test_words_equal_their_names_and_a_new_one_is_unknown() -> None:
    assert views.SessionState.ACTIVE == "ACTIVE"
    assert f"{views.RunState.SUCCEEDED}" == "SUCCEEDED"
    event = session_pb2.SessionEvent(number=1)
    event.MergeFromString(b"\x18\x63")  # kind = 99
    assert view_of(views.SessionEvent, event).kind is views.EventKind.UNKNOWN


def test_reasons_of_a_run_are_those_of_refusals_and_a_new_one_is_unknown() -> None:
    run = session_pb2.Run(error_reason=reason_pb2.REASON_KILLED)
    assert view_of(views.Run, run).error_reason is Reason.KILLED
    run.error_reason = cast(Any, 9999)
    session = session_pb2.Session(latest_run=run, failure_reason=cast(Any, 9999))
    view = view_of(Session, session, _wire=object())
    assert view.latest_run is not None
    assert view.latest_run.error_reason is view.failure_reason is Reason.UNKNOWN
    assert view_of(views.Run, session_pb2.Run()).error_reason is None


def test_run_has_ended_in_every_state_that_is_not_live() -> None:
    live = {"UNKNOWN", "QUEUED", "RUNNING", "WAITING_APPROVAL", "WAITING_BUDGET", "FINALIZING"}
    assert {state for state in views.RunState if not state.is_terminal} == live


def test_word_that_the_contract_does_not_have_is_refused_with_those_it_has() -> None:
    mode = session_pb2.SessionMode.DESCRIPTOR
    assert number_of("SESSION", mode) == number_of("session", mode) == session_pb2.SESSION_MODE_SESSION
    for word in ("FOREVER", "UNSPECIFIED"):
        with pytest.raises(ValueError, match="one of RUN, SESSION"):
            number_of(word, mode)


def test_session_has_its_run_and_is_equal_whatever_its_mesh() -> None:
    message = filled(session_pb2.Session())
    one, same = (view_of(Session, message, _wire=wire) for wire in (object(), object()))
    assert one == same
    assert one.latest_run is not None
    assert one.latest_run.delay is not None
    assert one.receipt is not None
    assert one.receipt.files[0].name == "x"
    assert view_of(Session, session_pb2.Session(), _wire=object()).latest_run is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.label = "other"  # type: ignore[misc]


def test_durations_are_timedeltas() -> None:
    plugin = hook_service_pb2.Plugin()
    plugin.timeout.FromSeconds(90)
    view = view_of(resource_views.Plugin, plugin)
    assert (view.timeout, view.max_wait) == (timedelta(seconds=90), None)


def test_entry_has_the_text_of_its_body() -> None:
    said = message_pb2.Message(
        role=message_pb2.ROLE_ASSISTANT,
        content=[
            message_pb2.ContentBlock(text=message_pb2.Text(text="one")),
            message_pb2.ContentBlock(
                tool_call=message_pb2.ToolCall(tool_call_id="c", name="read_file", block_json="{}")
            ),
            message_pb2.ContentBlock(text=message_pb2.Text(text="two")),
        ],
    )
    message = entry_view(entry_pb2.Entry(seq=3, body=entry_pb2.EntryBody(message=said)))
    assert (message.kind, message.role, message.text) == ("MESSAGE", "ASSISTANT", "one\ntwo")
    assert [call.name for call in message.tool_calls] == ["read_file"]
    note = entry_view(
        entry_pb2.Entry(body=entry_pb2.EntryBody(system_note=entry_pb2.SystemNote(text="n", topic="t")))
    )
    assert (note.kind, note.role, note.text) == ("NOTE", None, "n")
    assert entry_view(entry_pb2.Entry()).kind is views.EntryKind.UNKNOWN


def test_bodies_of_entries_are_those_of_the_contract() -> None:
    from spawnmesh_client.entries import _KINDS

    (oneof,) = entry_pb2.EntryBody.DESCRIPTOR.oneofs
    assert set(_KINDS) == {field.name for field in oneof.fields}


def test_outcomes_survive_pickling_and_say_what_to_do() -> None:
    failed = RunFailed(
        "RUN_TIMED_OUT", "too slow", state=views.RunState.TIMED_OUT, run_id="r", session_id="s", trace_id="t"
    )
    copy = pickle.loads(pickle.dumps(failed))
    assert vars(copy) == vars(failed)
    assert str(copy) == "s ended as TIMED_OUT with RUN_TIMED_OUT: too slow; trace t"
    late = pickle.loads(pickle.dumps(RunNotDone("ses_1", "run_1", views.RunState.QUEUED)))
    assert isinstance(late, TimeoutError)
    assert "run_1 is QUEUED" in str(late)
    assert 'mesh.session("ses_1")' in str(late)
