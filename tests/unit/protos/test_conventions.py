"""The conventions of `protos/README.md`, as far as descriptors show them."""

from collections.abc import Iterator

from buf.validate import validate_pb2
from google.longrunning import operations_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from spawnmesh.operations.v1.operation_service_pb2 import OperationMetadata
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

METHODS = [method for service in mesh_services() for method in service.methods]
PAGE_FIELDS = {"page_size", "page_token", "next_page_token", "has_more"}
MAX_PAGE_SIZE = 5000


def messages() -> Iterator[Descriptor]:
    """Return every message of the contracts, those within messages included."""
    files = {service.file.name: service.file for service in mesh_services()}
    waiting = list(files.values())
    while waiting:
        for imported in waiting.pop().dependencies:
            if imported.package.startswith("spawnmesh.") and imported.name not in files:
                files[imported.name] = imported
                waiting.append(imported)
    for file in files.values():
        for message in file.message_types_by_name.values():
            yield from within(message)


def within(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from within(nested)


def fields() -> list[FieldDescriptor]:
    return [field for message in messages() for field in message.fields]


def type_of(message: Descriptor, name: str) -> int | None:
    field = message.fields_by_name.get(name)
    return None if field is None else field.type


def defects_of(method: MethodDescriptor) -> Iterator[str]:
    """Yield why the list is not read as every other list."""
    asked, answered = method.input_type, method.output_type
    if type_of(asked, "page_size") != FieldDescriptor.TYPE_INT32:
        yield "no page_size"
    else:
        size = asked.fields_by_name["page_size"].GetOptions().Extensions[validate_pb2.field].int32
        if not (size.HasField("gte") and size.gte == 0 and 0 < size.lte <= MAX_PAGE_SIZE):
            yield "no bounds of page_size"
    if type_of(asked, "page_token") != FieldDescriptor.TYPE_STRING:
        yield "no page_token"
    elif not asked.fields_by_name["page_token"].GetOptions().Extensions[validate_pb2.field].string.max_bytes:
        yield "no bound of page_token"
    if type_of(answered, "next_page_token") != FieldDescriptor.TYPE_STRING:
        yield "no next_page_token"
    if not any(field.is_repeated for field in answered.fields):
        yield "no items"
    cursors = {"has_more", "next_position", "next_after_seq"} & set(answered.fields_by_name)
    if cursors:
        yield f"another cursor: {cursors}"


def is_list(method: MethodDescriptor) -> bool:
    """Return whether an RPC returns the items of a list, and no stream of them.

    The names of the fields of pages belong to lists: no other RPC has one.
    """
    if method.server_streaming or method.client_streaming:
        return False
    fields = {*method.input_type.fields_by_name, *method.output_type.fields_by_name}
    return method.name.startswith(("List", "Search", "Expand")) or bool(fields & PAGE_FIELDS)


def test_every_list_comes_in_pages() -> None:
    lists = [method for method in METHODS if is_list(method)]
    assert {"ListInbox", "ExpandSummary", "VerifyAuditEvents"} < {method.name for method in lists}
    assert {method.name: found for method in lists if (found := list(defects_of(method)))} == {}


def starts_operation(method: MethodDescriptor) -> bool:
    return method.GetOptions().HasExtension(operations_pb2.operation_info)


def response_of(method: MethodDescriptor) -> str:
    """Return the full name of the response that the conventions want.

    It is an operation for the RPCs that start one or return it, as AIP-151 has them.
    """
    is_of_an_operation = method.name in ("GetOperation", "WaitOperation")
    if starts_operation(method) or is_of_an_operation:
        return str(operations_pb2.Operation.DESCRIPTOR.full_name)
    return f"{method.containing_service.file.package}.{method.name}Response"


def test_an_rpc_has_messages_of_its_own_and_answers_an_operation_if_it_starts_one() -> None:
    for method in METHODS:
        package = method.containing_service.file.package
        assert method.input_type.full_name == f"{package}.{method.name}Request"
        assert method.output_type.full_name == response_of(method), method.full_name
    requests = [method.input_type.full_name for method in METHODS]
    assert len(set(requests)) == len(requests)


def test_an_operation_names_its_response_and_has_a_request_id() -> None:
    starting = [method for method in METHODS if starts_operation(method)]
    assert {"TierTranscript", "DeleteTenant"} < {method.name for method in starting}
    for method in starting:
        package = method.containing_service.file.package
        info = method.GetOptions().Extensions[operations_pb2.operation_info]
        assert info.response_type == f"{package}.{method.name}Response"
        assert info.metadata_type == OperationMetadata.DESCRIPTOR.full_name
        assert method.containing_service.file.pool.FindMessageTypeByName(info.response_type)
        assert "request_id" in method.input_type.fields_by_name, method.full_name


def test_what_identifies_the_repeat_of_a_call_is_its_request_id() -> None:
    """An RPC that changes something can be repeated with it; one that reads finds what it made."""
    named = [method for method in METHODS if "request_id" in method.input_type.fields_by_name]
    assert {"SpawnSession", "AppendEntries", "CollectGarbage"} < {method.name for method in named}
    for method in named:
        field = method.input_type.fields_by_name["request_id"]
        bounds = field.GetOptions().Extensions[validate_pb2.field].string
        assert bounds.max_bytes in (128, 256), field.full_name
        level = method.GetOptions().idempotency_level
        if level == MethodOptions.NO_SIDE_EFFECTS:
            assert is_list(method), method.full_name
        else:
            assert level == MethodOptions.IDEMPOTENT, method.full_name
    keys = ("idempotency", "dedup", "client_token", "nonce")
    assert [field.full_name for field in fields() if any(key in field.name for key in keys)] == []


def chunk_of(method: MethodDescriptor) -> Descriptor | None:
    """Return the message of the pieces of a transfer to the mesh; None for another RPC."""
    parts = method.input_type.fields_by_name
    return parts["chunk"].message_type if "chunk" in parts else None


def has_durable_bytes(answer: Descriptor) -> bool:
    """Return whether the answer, or the resource in it, counts the bytes that are durable."""
    inner = [field.message_type for field in answer.fields if field.message_type is not None]
    return any(type_of(one, "durable_bytes") == FieldDescriptor.TYPE_INT64 for one in (answer, *inner))


def test_a_transfer_to_the_mesh_is_a_spec_chunks_with_offsets_and_finish() -> None:
    sending = [method for method in METHODS if method.client_streaming]
    assert {method.name for method in sending} == {"UploadFile", "ImportTranscript"}
    for method in sending:
        assert not method.server_streaming, method.name
        assert [field.name for field in method.input_type.fields] == ["spec", "chunk", "finish"]
        assert {field.containing_oneof.name for field in method.input_type.fields} == {"message"}
        chunk = chunk_of(method)
        assert chunk is not None
        assert type_of(chunk, "offset") == FieldDescriptor.TYPE_INT64, method.name
        assert type_of(chunk, "data") == FieldDescriptor.TYPE_BYTES, method.name
        assert has_durable_bytes(method.output_type), method.name


def test_a_transfer_from_the_mesh_begins_at_a_position() -> None:
    reading = [
        method
        for method in METHODS
        if method.server_streaming and type_of(method.output_type, "data") == FieldDescriptor.TYPE_BYTES
    ]
    assert {method.name for method in reading} == {"ReadFile", "GetBlob", "ExportTranscript"}
    for method in reading:
        names = set(method.input_type.fields_by_name)
        assert "offset" in names or {"after_seq", "incarnation"} <= names, method.name


def _ending(field: FieldDescriptor) -> str:
    return "_times" if field.is_repeated else "_time"


def test_times_end_in_time_and_durations_have_no_unit_in_their_names() -> None:
    times = [
        field
        for field in fields()
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp"
    ]
    assert len(times) > 20
    assert [field.full_name for field in times if not field.name.endswith(_ending(field))] == []
    units = ("_seconds", "_millis", "_ms", "_minutes", "_days")
    assert [field.full_name for field in fields() if field.name.endswith(units)] == []


def test_only_requests_with_a_token_without_a_tenant_name_one() -> None:
    """Those of operators, and those of services with a token for the whole mesh."""
    named = [method for method in METHODS if "tenant_id" in method.input_type.fields_by_name]
    assert len(named) > 10
    others = [method for method in named if CallerKind.ADMIN not in policy_of(method).callers]
    assert [method.name for method in others if not policy_of(method).without_tenant] == []
