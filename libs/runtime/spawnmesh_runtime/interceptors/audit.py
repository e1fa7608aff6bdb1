"""Make events of the audit log: of calls that the contract has recorded, and of denied calls.

An event is made after the answer is sent. It has ids from the messages and never content.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any
from urllib.parse import unquote

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from spawnmesh_core.audit_event import DENIED, MAX_RESOURCES, AuditEvent, resource, shortened_text
from spawnmesh_core.ids import TENANT_ID

from spawnmesh_runtime.call import Call, ServedMethod, Step
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.defer import defer
from spawnmesh_runtime.methods import AuditRule
from spawnmesh_runtime.telemetry import current_trace_id

Record = Callable[[AuditEvent], None]
Path = tuple[str, ...]
Read = Callable[[Any], str | list[str]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The caller chooses a `request_id` freely, and it may be text. An event has its own trace.
_NO_RESOURCES = frozenset({"request_id", "trace_id"})


class ResourceNames:
    """The fields of an RPC's messages that name resources."""

    def __init__(self, method: MethodDescriptor, rule: AuditRule) -> None:
        named = [tuple(path.split(".")) for path in rule.resource_fields]
        request, response = _paths(method.input_type, named), _paths(method.output_type, named)
        self.fields = tuple(".".join(path) for path in dict.fromkeys((*request, *response)))
        """The paths of the fields, of the request first."""
        unknown = set(rule.resource_fields) - set(self.fields)
        if unknown:
            raise ValueError(f"{method.full_name} has no fields {sorted(unknown)} to name resources")
        self._request = [_reader(method.input_type, path) for path in request]
        self._response = [_reader(method.output_type, path) for path in response]

    def note_request(self, call: Call, message: Message) -> None:
        """Add the ids of the request, or of its first message, to the call."""
        _note(call, message, self._request)

    def note_response(self, call: Call, message: Message) -> None:
        """Add the ids of the response to the call."""
        _note(call, message, self._response)


def _note(call: Call, message: Message, readers: Iterable[tuple[str, Read]]) -> None:
    for name, read in readers:
        found = read(message)
        for value in (found,) if isinstance(found, str) else found:
            if value and (entry := resource(name, value)) not in call.resources:
                call.resources = (*call.resources, entry)[:MAX_RESOURCES]


def _paths(message: Descriptor, named: list[Path]) -> tuple[Path, ...]:
    """Return the paths of fields that end in `_id`, in the message or directly within it, and those
    of `named` that it has.
    """
    found: list[Path] = [(field.name,) for field in message.fields if _is_id(field)]
    for field in message.fields:
        if field.message_type is not None and not field.is_repeated:
            found += [(field.name, inner.name) for inner in field.message_type.fields if _is_id(inner)]
    return (*found, *(path for path in named if _has(message, path) and path not in found))


def _is_id(field: FieldDescriptor) -> bool:
    is_text = field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated
    return is_text and field.name.endswith("_id") and field.name not in _NO_RESOURCES


def _has(message: Descriptor | None, path: Path) -> bool:
    for name in path:
        if message is None or name not in message.fields_by_name:
            return False
        message = message.fields_by_name[name].message_type
    return True


def _reader(message: Descriptor, path: Path) -> tuple[str, Read]:
    """Return the name of a field, and a function that reads its value, or its values if a message
    on the path is repeated.
    """
    repeated = next(
        (place for place, name in enumerate(path) if _is_repeated(message, path[:place], name)), None
    )
    if repeated is None:
        return path[-1], attrgetter(".".join(path))
    outer, inner = attrgetter(".".join(path[: repeated + 1])), attrgetter(".".join(path[repeated + 1 :]))
    return path[-1], lambda message: [inner(one) for one in outer(message)[:MAX_RESOURCES]]


def _is_repeated(message: Descriptor, parents: Path, name: str) -> bool:
    inner: Any = message
    for parent in parents:
        inner = inner.fields_by_name[parent].message_type
    return bool(inner.fields_by_name[name].is_repeated)


def named_resources(inner: Step, names: ResourceNames, *, client_streaming: bool) -> Step:
    """Add the ids that the request names to the call, for its event."""

    async def unary(call: Call) -> object:
        names.note_request(call, call.request)
        return await inner(call)

    async def streaming(call: Call) -> object:
        call.request = _noting_first(call, call.request)
        return await inner(call)

    async def _noting_first(call: Call, messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
        is_first = True
        async for message in messages:
            if is_first:
                names.note_request(call, message)
                is_first = False
            yield message
            del message

    return streaming if client_streaming else unary


def audited_calls(inner: Step, method: ServedMethod, record: Record | None) -> Step:
    """Set `call.audit_event` after the answer is sent, for the log, and pass it to `record`.

    Denied calls are events at each RPC, and other calls as the contract says.
    """
    rule = method.policy.audit
    path = f"{method.service}/{method.name}"
    needed = tuple(f"{field.rpartition('.')[2]}=" for field in rule.resource_fields)

    def is_event(call: Call) -> bool:
        if call.status in DENIED:
            return True
        if call.status != "OK" or not rule.only_with_resources:
            return rule.is_recorded
        return any(entry.startswith(needed) for entry in call.resources)

    async def step(call: Call) -> object:
        # Read now: grpc frees the peer with the call, and crashes the process if it is asked later.
        peer = call.context.peer()
        try:
            return await inner(call)
        finally:
            if is_event(call):
                defer(partial(report, call, peer))

    def report(call: Call, peer: str) -> None:
        call.audit_event = event = _event_of(call, peer, path, rule)
        if record is not None:
            record(event)

    return step


def _event_of(call: Call, peer: str, path: str, rule: AuditRule) -> AuditEvent:
    caller = call.caller
    return AuditEvent(
        tenant_id=_tenant_of(call),
        method=path,
        code=call.status,
        event_time=_EPOCH + timedelta(microseconds=call.start_time_ns // 1000),
        reason=call.refusal.reason.value if call.refusal is not None else "",
        caller_kind=caller.kind.value if caller is not None else "",
        subject=shortened_text(caller.subject) if caller is not None else "",
        token_id=shortened_text(caller.token_id) if caller is not None else "",
        resources=_resources_of(call),
        trace_id=current_trace_id(),
        peer=_address_of(peer),
        merges=call.status != "OK" or rule.merged,
    )


def _resources_of(call: Call) -> tuple[str, ...]:
    """Return the ids that the messages name, the session of a calling run, and the tenant of a
    client that acts as an operator of the mesh.
    """
    caller = call.caller
    if caller is None:
        return call.resources
    own = (("client_tenant_id", caller.client_tenant_id), ("session_id", caller.session_id))
    entries = [resource(name, value) for name, value in own if value]
    return (*(entry for entry in entries if entry not in call.resources), *call.resources)


def _tenant_of(call: Call) -> str:
    """Return the tenant of the caller, or the one that an operator of the mesh names."""
    caller = call.caller
    if caller is None or caller.tenant_id or caller.kind is not CallerKind.ADMIN:
        return caller.tenant_id if caller is not None else ""
    for entry in call.resources:
        name, _, value = entry.partition("=")
        if name == "tenant_id" and TENANT_ID.fullmatch(value):
            return value
    return ""


def _address_of(peer: str) -> str:
    """Return the address of a peer without its port, such as `10.0.0.7`, `::1` or `unix`."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return shortened_text(kind)
    return (unquote(rest) if "%" in rest else rest).rpartition(":")[0].strip("[]")
