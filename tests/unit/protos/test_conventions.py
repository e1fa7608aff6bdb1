"""The conventions of `protos/README.md`, as far as descriptors show them."""

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

METHODS = [method for service in mesh_services() for method in service.methods]
NOT_IN_PAGES = {
    "ListEntries": "it continues behind a seq of the transcript",
    "ListTranscripts": "it continues behind the id of a session",
    "ListPlugins": "it returns everything: the tenant has a limit",
    "ListActiveHooks": "it returns everything: the tenant has a limit of plugins",
    "ListModels": "it returns the whole configuration",
    "ListProviderHealth": "it returns the whole configuration",
    "ListInbox": "it returns the oldest messages until they are acknowledged",
}
REQUEST_IDS = {
    "AppendEntries",
    "DispatchBeforeAgentFinalize",
    "RelayNativeStop",
    "SendMessage",
    "SpawnSession",
}
"""The RPCs whose caller chooses an id for their repeats."""
OTHER_KEYS = {
    "spawnmesh.hook.v1.Revise.idempotency_key": "it names an objection of a plugin, not a call",
}


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


def is_paged(method: MethodDescriptor) -> bool:
    asked, answered = method.input_type.fields_by_name, method.output_type.fields_by_name
    return {"page_size", "page_token"} <= set(asked) and "next_page_token" in answered


def test_every_list_comes_in_pages_or_has_a_reason() -> None:
    lists = {method.name: method for method in METHODS if method.name.startswith(("List", "Search"))}
    assert len(lists) > 10
    assert {name for name, method in lists.items() if not is_paged(method)} == NOT_IN_PAGES.keys()


def test_what_identifies_the_repeat_of_a_call_is_its_request_id() -> None:
    named = {method.name for method in METHODS if "request_id" in method.input_type.fields_by_name}
    assert named == REQUEST_IDS | {"ListSessions"}  # It finds the session of a request_id.
    others = {field.full_name for field in fields() if "idempotency" in field.name}
    assert others == OTHER_KEYS.keys()


def test_times_end_in_time_and_durations_have_no_unit_in_their_names() -> None:
    times = [
        field
        for field in fields()
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp"
    ]
    assert len(times) > 20
    assert [field.full_name for field in times if not field.name.endswith("_time")] == []
    units = ("_seconds", "_millis", "_ms", "_minutes", "_days")
    assert [field.full_name for field in fields() if field.name.endswith(units)] == []


def test_only_requests_that_operators_may_send_name_a_tenant() -> None:
    named = [method for method in METHODS if "tenant_id" in method.input_type.fields_by_name]
    assert len(named) > 10
    assert [method.name for method in named if CallerKind.ADMIN not in policy_of(method).callers] == []
