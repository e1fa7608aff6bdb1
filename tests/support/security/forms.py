"""Requests of any RPC that pass validation, with ids where the contract has ids.

A form is made from the descriptor and its validation rules. FIELDS says which names of fields are
ids and of what kind; FORMS adds what the rules do not say, for RPCs that would refuse the bare form.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from buf.validate import validate_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

Path = tuple[str, ...]
Ids = Mapping[str, str]
"""The ids of one tenant by kind."""

_KINDS = (
    (r"(.*_)?session_ids?", "session"),
    (r"(.*_)?run_id", "run"),
    (r"(.*_)?entry_id", "entry"),
    (r"(spawnable_agents|agent_id)", "agent"),
    (r"(set|upload|blob|file|tenant|token|approval|call|firing)_id", None),
    (r"(incarnation|chain_hash|line_chain|sha256|plugin|keys|event_key)", None),
    (r"event_ids", "webhook_event"),
    (r"request_id", "request"),
    (r"cursor", "cursor"),
    (r"tool_call_id", "tool_call"),
)
"""Names of fields that are ids, and the kind of the id; None if the kind is the name itself."""

_IDS_OF_RPCS = {
    "spawnmesh.hook.v1.GetPluginRequest.name": "plugin",
    "spawnmesh.hook.v1.PausePluginRequest.name": "plugin",
    "spawnmesh.hook.v1.ResumePluginRequest.name": "plugin",
    "spawnmesh.hook.v1.DeletePluginRequest.name": "plugin",
    "spawnmesh.hook.v1.TestPluginRequest.name": "plugin",
    "spawnmesh.hook.v1.Plugin.name": "plugin",
    "spawnmesh.hook.v1.GetWebhookRequest.name": "webhook",
    "spawnmesh.hook.v1.PauseWebhookRequest.name": "webhook",
    "spawnmesh.hook.v1.ResumeWebhookRequest.name": "webhook",
    "spawnmesh.hook.v1.DeleteWebhookRequest.name": "webhook",
    "spawnmesh.hook.v1.RotateWebhookSecretRequest.name": "webhook",
    "spawnmesh.hook.v1.TestWebhookRequest.name": "webhook",
    "spawnmesh.hook.v1.ListWebhookDeliveriesRequest.name": "webhook",
    "spawnmesh.hook.v1.ReplayWebhookDeliveriesRequest.name": "webhook",
    "spawnmesh.hook.v1.Webhook.name": "webhook",
    "spawnmesh.attachment_blob.v1.ReadFileRequest.name": "file_name",
    "spawnmesh.attachment_blob.v1.CreateDownloadUrlRequest.name": "file_name",
    "spawnmesh.attachment_blob.v1.UploadSpec.name": "file_name",
    "spawnmesh.attachment_blob.v1.ReferencedFile.name": "file_name",
    "spawnmesh.jobs.v1.ListJobsRequest.kind": "job_kind",
    "spawnmesh.jobs.v1.RetryJobRequest.kind": "job_kind",
    "spawnmesh.jobs.v1.DiscardJobRequest.kind": "job_kind",
    "spawnmesh.jobs.v1.RetryJobRequest.key": "job_key",
    "spawnmesh.jobs.v1.DiscardJobRequest.key": "job_key",
    "spawnmesh.operations.v1.GetOperationRequest.name": "operation",
    "spawnmesh.operations.v1.WaitOperationRequest.name": "operation",
    "spawnmesh.operations.v1.CancelOperationRequest.name": "operation",
    "spawnmesh.operations.v1.DeleteOperationRequest.name": "operation",
    "spawnmesh.transcript.v1.Source.id": "source",
    "spawnmesh.transcript.v1.WatchTranscriptRequest.cursor": "transcript_cursor",
    "spawnmesh.session.v1.Schedule.name": "schedule",
    "spawnmesh.session.v1.GetScheduleRequest.name": "schedule",
    "spawnmesh.session.v1.PauseScheduleRequest.name": "schedule",
    "spawnmesh.session.v1.ResumeScheduleRequest.name": "schedule",
    "spawnmesh.session.v1.DeleteScheduleRequest.name": "schedule",
    "spawnmesh.session.v1.RunScheduleRequest.name": "schedule",
    "spawnmesh.session.v1.ListScheduleFiringsRequest.name": "schedule",
}

NOT_IDS = frozenset(
    [
        "accompanying_texts",
        "arguments",
        "arguments_json",
        "arguments_sha256",
        "block_json",
        "causes",
        "changed_by",
        "choices",
        "code",
        "command",
        "content",
        "cron",
        "custom_type",
        "data",
        "data_json",
        "decided_by",
        "decision",
        "delivery_target",
        "description",
        "destination",
        "details",
        "display_name",
        "draft_text",
        "endpoint",
        "entry_json",
        "error_message",
        "error_reason",
        "error_type",
        "etag",
        "event_json",
        "fallback_models",
        "filter",
        "first_provider",
        "idempotent_tool_names",
        "image_provider",
        "kind",
        "label",
        "line",
        "mcp_servers",
        "message",
        "method",
        "mime_type",
        "model",
        "models",
        "mount_path",
        "name",
        "new_name",
        "order_by",
        "outcome",
        "page_token",
        "parameters_json",
        "pattern",
        "pause_reason",
        "plugins",
        "previous_summary",
        "price_version",
        "provider",
        "reason",
        "result_text",
        "runner_id",
        "signature",
        "stalled_by",
        "state",
        "summary",
        "system_prompt",
        "target",
        "task",
        "tenant_class",
        "text",
        "thinking",
        "thinking_level",
        "time_zone",
        "token_vocabulary",
        "tool_name",
        "tool_names",
        "tools",
        "topic",
        "trace_id",
        "type",
        "updated_by",
        "url",
        "words",
    ]
)
"""Names of texts that name no stored thing of a tenant."""

_TEXT_MESSAGE = {"role": "ROLE_USER", "content": [{"text": {"text": "hello"}}]}

FORMS: dict[str, Callable[[Ids], Mapping[str, Any]]] = {
    "AttachmentBlobService.StageSet": lambda ids: {
        "items": [{"name": "a.txt", "content": "a", "encoding": "ENCODING_UTF8"}]
    },
    "AttachmentBlobService.UploadFile": lambda ids: {"spec": {"sizeBytes": ids["file_bytes"]}},
    "BudgetService.AdmitModelCall": lambda ids: {"expiresIn": "60s"},
    "BudgetService.UpdateBudget": lambda ids: {"budget": {"maxModelCallCount": "1000"}},
    "HookService.UpdatePlugin": lambda ids: {
        "plugin": {"endpoint": "grpc://127.0.0.1:1", "failurePolicy": "FAILURE_POLICY_OPEN"},
        "allowMissing": True,
        "allowUnreachable": True,
    },
    "HookService.PublishEvents": lambda ids: {
        "events": [
            {
                "eventKey": f"{ids['event_key']}-{ids['request']}",
                "sessionId": ids["session"],
                "runId": ids["run"],
                "afterToolCall": {"toolName": "a"},
            }
        ]
    },
    "HookService.RelayNativeStop": lambda ids: {
        "eventJson": '{"hook_event_name":"Stop","session_id":"a","stop_hook_active":false}'
    },
    "WebhookService.UpdateWebhook": lambda ids: {
        "webhook": {"url": "https://127.0.0.1:1/hooks"},
        "allowMissing": True,
        "allowUnreachable": True,
    },
    "ModelRouterService.Generate": lambda ids: {"model": "scripted/agent", "messages": [_TEXT_MESSAGE]},
    "OperationService.ListOperations": lambda ids: {"name": "services/transcript", "filter": None},
    "OperationService.WaitOperation": lambda ids: {"timeout": "0s"},
    "RunService.PublishFiles": lambda ids: {"files": [{"name": "a.txt", "data": "YQ=="}]},
    "RunService.ReportRunEvents": lambda ids: {
        "events": [{"model_failure": {"model": "a/b", "reason": "TIMEOUT"}}]
    },
    "RunService.RequestApproval": lambda ids: {"toolCall": {"argumentsJson": "{}"}},
    "ScheduleService.UpdateSchedule": lambda ids: {
        "schedule": {"cron": "0 0 1 1 *", "spawn": {"task": "a"}},
        "updateMask": "*",
        "allowMissing": True,
    },
    "SearchService.SearchEntries": lambda ids: {"withDescendants": True},
    "SessionService.ListSessions": lambda ids: {"requestId": None},
    "SessionService.WaitSession": lambda ids: {"timeout": "0s"},
    "SessionService.WatchSession": lambda ids: {"withTranscript": True},
    "TranscriptService.AppendEntries": lambda ids: {"entries": [{"message": _TEXT_MESSAGE}]},
    "TranscriptService.CreateTranscript": lambda ids: {"parentSessionId": None},
}
"""Fields by RPC, in the JSON of the proto, that its form has besides those that the rules demand; None
for one that it must not have."""


@dataclass(frozen=True)
class IdField:
    """A field of a request that takes an id."""

    path: Path
    kind: str


def kind_of(field: FieldDescriptor) -> str | None:
    """Return the kind of the ids that the field takes; None if it takes none.

    Raises AssertionError for a text of which nothing is known.
    """
    if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return None
    if field.full_name in _IDS_OF_RPCS:
        return _IDS_OF_RPCS[field.full_name]
    for pattern, kind in _KINDS:
        if re.fullmatch(pattern, field.name):
            return kind or field.name
    assert field.name in NOT_IDS, (
        f"{field.full_name} is not known to the attacks: if it takes an id, or a name of something that is"
        " stored, give it a kind in tests/support/security/forms.py, else add it to NOT_IDS there"
    )
    return None


def id_fields(kind: Descriptor) -> list[IdField]:
    """Return all fields of the message, and of messages in it, that take an id."""
    return [IdField(path, found) for path, field in fields_of(kind) if (found := kind_of(field)) is not None]


def fields_of(
    kind: Descriptor, before: Path = (), inside: frozenset[str] = frozenset()
) -> Iterator[tuple[Path, FieldDescriptor]]:
    """Yield every field that is no message, with the names that lead to it. A message inside a
    message of its own type is left out.
    """
    for field in kind.fields:
        path = (*before, field.name)
        if field.message_type is None:
            yield path, field
        elif field.message_type.full_name not in inside and not _is_plain(field.message_type):
            yield from fields_of(field.message_type, path, inside | {kind.full_name})


def form_of(method: MethodDescriptor, ids: Ids) -> Message:
    """Return a request with all top-level ids, and with what the contract demands."""
    form = _filled(method.input_type, ids)
    more = FORMS.get(f"{method.containing_service.name}.{method.name}")
    if more is not None:
        given = more(ids)
        for name in (name for name, value in given.items() if value is None):
            form.ClearField(re.sub("([A-Z])", r"_\1", name).lower())
        json_format.ParseDict(given, form)
    return form


def with_id(form: Message, field: IdField, value: str, ids: Ids) -> Message:
    """Return the form with another id in one field. Messages on the way to it are made if need be."""
    changed = type(form)()
    changed.CopyFrom(form)
    _set(changed, field.path, value, ids)
    return changed


def set_field(form: Message, path: Path, value: Any) -> Message:
    """Return the form with the value in a field, in each message that leads there."""
    changed = type(form)()
    changed.CopyFrom(form)
    _set(changed, path, value, {})
    return changed


def _set(message: Message, path: Path, value: Any, ids: Ids) -> None:
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    if rest:
        several = getattr(message, name) if field.is_repeated else None
        if several is not None and not len(several):
            several.add().CopyFrom(_filled(field.message_type, ids))
        elif several is None and not message.HasField(name):
            getattr(message, name).CopyFrom(_filled(field.message_type, ids))
        _set(several[0] if several is not None else getattr(message, name), tuple(rest), value, ids)
        return
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
        value = bytes.fromhex(value)
    if field.is_repeated:
        del getattr(message, name)[:]
        getattr(message, name).append(value)
    else:
        setattr(message, name, value)


def _filled(kind: Descriptor, ids: Ids) -> Message:
    message = message_factory.GetMessageClass(kind)()
    if _is_plain(kind):
        return message
    demanded = {
        one.fields[0].name for one in kind.oneofs if one.GetOptions().Extensions[validate_pb2.oneof].required
    }
    for field in kind.fields:
        rules = field.GetOptions().Extensions[validate_pb2.field]
        in_oneof = field.containing_oneof is not None
        if in_oneof and field.name not in demanded:
            continue
        if field.message_type is not None:
            if rules.required or in_oneof or (field.is_repeated and rules.repeated.min_items):
                made = _filled(field.message_type, ids)
                if field.is_repeated:
                    getattr(message, field.name).append(made)
                else:
                    getattr(message, field.name).CopyFrom(made)
                    getattr(message, field.name).SetInParent()
            continue
        value = _value(field, rules, ids)
        if value is None:
            continue
        if field.is_repeated:
            if rules.repeated.min_items:
                getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _value(field: FieldDescriptor, rules: validate_pb2.FieldRules, ids: Ids) -> Any:
    """Return a value that the rules allow; None if they allow the default and it is no id."""
    kind = kind_of(field)
    if kind is not None and kind in ids:
        return bytes.fromhex(ids[kind]) if field.type == FieldDescriptor.TYPE_BYTES else ids[kind]
    if field.name == "epoch":
        return int(ids.get("epoch", 1))
    if field.type == FieldDescriptor.TYPE_STRING:
        text = rules.string
        if field.is_repeated:
            return "a"
        return "a" if text.min_len or text.min_bytes or (text.pattern and not _fits(text.pattern)) else None
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(rules.bytes.len or rules.bytes.min_len) if rules.HasField("bytes") else None
    if field.type == FieldDescriptor.TYPE_ENUM:
        return 1 if 0 in rules.enum.not_in or field.is_repeated else None
    number = next(
        (one for one in (rules.int32, rules.int64, rules.uint32, rules.uint64) if one.HasField("gt")), None
    )
    return None if number is None else number.gt + 1


def _fits(pattern: str) -> bool:
    return re.search(pattern, "") is not None


def _is_plain(kind: Descriptor) -> bool:
    """Return whether the type has no ids: times, and the values of maps."""
    return kind.full_name.startswith("google.protobuf.") or kind.GetOptions().map_entry
