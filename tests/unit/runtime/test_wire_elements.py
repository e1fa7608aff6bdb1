"""The elements of an encoded message are counted as the decoder would make them."""

import random
import time
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import Struct
from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime import wire_elements
from spawnmesh_runtime.call import Call
from spawnmesh_runtime.call_limits import FIELDS_PER_SECOND, CallLimits, DefaultCallLimits
from spawnmesh_runtime.interceptors.read import decode_with
from spawnmesh_runtime.interceptors.validate import MAX_ELEMENTS, decode_valid
from spawnmesh_runtime.rpc_class import RpcClass
from spawnmesh_runtime.wire_elements import MalformedWire, count_elements, shape_of

MANY = 10**9
NO_CONTEXT: Any = None
CALL = Call(NO_CONTEXT)
GENERATE_TYPE = router_pb.GenerateRequest.DESCRIPTOR
GENERATE = shape_of(GENERATE_TYPE)
SOURCE = shape_of(entry_pb2.Source.DESCRIPTOR)
FILE = shape_of(FileDescriptorProto.DESCRIPTOR)
ONE_TEXT = message_pb2.Message(
    role=message_pb2.ROLE_USER, content=[message_pb2.ContentBlock(text=message_pb2.Text(text="hello"))]
)

COUNTS = {
    "nothing": (b"", 0),
    "empty messages": (b"\x2a\x00" * 3, 3),
    "a message with a role": (b"\x2a\x02\x08\x01", 2),
    "a text, which is not read": (b"\x22\x03\x2a\x00\x2a", 1),
    "repeated texts": (b"\x12\x00" * 4, 4),
    "a number that comes again": (b"\x38\x01" * 5, 5),
    "a long number": (b"\x38" + b"\xff" * 9 + b"\x01", 1),
    "unknown fields": (b"\xf8\x7f\x01\xfd\x7f1234\xf9\x7f12345678\xfa\x7f\x021\x00", 4),
    "an unknown group": (b"\x2a\x00\xfb\x7f\x2a\x02\x08\x01\x38\x01\xfc\x7f\x2a\x00", 6),
    "a tag that is longer than it needs to be": (b"\xaa\x00\x00\xaa\x80\x00\x02\x08\x01", 3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_each_field_on_the_wire_counts(name: str) -> None:
    data, count = COUNTS[name]
    router_pb.GenerateRequest.FromString(data)
    assert count_elements(data, GENERATE, most=MANY) == count


def test_packed_numbers_count_one_by_one() -> None:
    packed = entry_pb2.Source(gaps=[1, 300, -1]).SerializeToString()
    assert count_elements(packed, SOURCE, most=MANY) == 1 + 3
    numbers = Struct()
    numbers["a"] = [1.0, {"b": 2.0}]
    # fields{key, value{list{values{number}, values{struct{fields{key, value{number}}}}}}}
    assert count_elements(numbers.SerializeToString(), shape_of(Struct.DESCRIPTOR), most=MANY) == 12


def test_count_ends_at_the_budget() -> None:
    assert count_elements(b"\x2a\x00" * 10 + b"\xff", GENERATE, most=9) == 10


BROKEN = {
    "a length beyond the end": b"\x2a\x05\x08\x01",
    "a length beyond the message around it": b"\x2a\x02\x12\x02ab",
    "no length": b"\x2a",
    "half a number": b"\x38\xff",
    "a number of eleven bytes": b"\x38" + b"\xff" * 10 + b"\x01",
    "half a fixed number": b"\xfd\x7f123",
    "a group without an end": b"\xfb\x7f",
    "an end without a group": b"\xfc\x7f",
    "groups that are nested too deeply": b"\xfb\x7f" * 200 + b"\xfc\x7f" * 200,
    "a type that does not exist": b"\x3f",
}


@pytest.mark.parametrize("name", BROKEN)
def test_bytes_that_are_no_message_are_refused(name: str) -> None:
    with pytest.raises(DecodeError):
        router_pb.GenerateRequest.FromString(BROKEN[name])
    with pytest.raises(MalformedWire):
        count_elements(BROKEN[name], GENERATE, most=MANY)


def elements_of(message: Message) -> int:
    """Return the number of the elements of the decoded message."""
    count = 0
    for field, value in message.ListFields():
        members = list(value) if field.is_repeated else [value]
        count += len(members)
        count += sum(elements_of(one) for one in members if field.message_type is not None)
    return count


def test_mutated_bytes_that_decode_never_have_more_elements_than_are_counted() -> None:
    dice = random.Random(11)
    file = FileDescriptorProto()
    DescriptorProto.DESCRIPTOR.file.CopyToProto(file)
    # Messages in messages of their own type, packed numbers, and texts; without the options.
    original = FileDescriptorProto(name="a", message_type=file.message_type[:6]).SerializeToString()
    decoded = 0
    for _ in range(2000):
        begin = dice.randrange(len(original) - 100)
        data = bytearray(original[begin : begin + 100] if dice.random() < 0.5 else original)
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            message = FileDescriptorProto.FromString(bytes(data))
        except DecodeError:
            continue
        decoded += 1
        assert count_elements(bytes(data), FILE, most=MANY) >= elements_of(message)
    assert decoded > 100


PIECES = [
    *(b"\x38\x01", b"\x38\x80\x01", b"\xf8\x7f\x00", b"\xf8\x80\x80\x00\x05", b"\x38" + b"\xff" * 9 + b"\x01"),
    *(b"\x2a\x00", b"\xfa\x7f\x00", b"\x2a\x80\x00", b"\x2a\x02\x08\x01", b"\x2a\x04\x38\x01\x38\x01", b"\x12\x01a"),
    *(b"\xfd\x7f1234", b"\xf9\x7f12345678", b"\xfb\x7f\x38\x01\xfc\x7f", b"\xfb\x7f", b"\xfc\x7f"),
    *(b"\x38" + b"\xff" * 11, b"\xf8" * 11, b"\x38", b"\xff", b"\x07", b"\x2a\x7f"),
]  # fmt: skip
"""Fields, and bytes that end too early or are none."""


def counted(data: bytes, most: int) -> tuple[str, int]:
    try:
        return "counted", min(count_elements(data, GENERATE, most=most), most + 1)
    except MalformedWire as malformed:
        return "malformed", malformed.count


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_fields_count_as_each_field_alone(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    for _ in range(3000):
        row = [dice.choice(PIECES[:8]) for _ in range(dice.randrange(30))]
        pieces = [*row, *(dice.choice(PIECES) for _ in range(dice.randrange(4)))] * dice.randrange(1, 4)
        data = b"".join(pieces)
        data = data[: dice.randrange(len(data) + 1)] if dice.random() < 0.5 else data
        most = dice.choice([5, 40, MANY])
        found = []
        for tries in (1, 8, MANY):  # With MANY, no row is tried.
            monkeypatch.setattr(wire_elements, "_ROW_TRIES", tries)
            found.append(counted(data, most))
        outcomes, counts = {outcome for outcome, _ in found}, {count for _, count in found}
        # A row that exceeds the budget is refused for that, although something malformed follows.
        assert len(counts) == 1 or max(counts) > most, data
        assert len(outcomes) == 1 or max(counts) > most, data


def test_a_row_is_counted_much_faster_than_its_fields_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\xf8\x3f\x00" * 50_000
    seconds = []
    for tries in (8, MANY):
        monkeypatch.setattr(wire_elements, "_ROW_TRIES", tries)
        begin = time.thread_time()
        assert count_elements(data, GENERATE, most=MANY) == 50_000
        seconds.append(time.thread_time() - begin)
    assert seconds[0] < seconds[1] / 2


def append_of(texts: int) -> transcript_pb.AppendEntriesRequest:
    message = message_pb2.Message(role=message_pb2.ROLE_USER, content=[ONE_TEXT.content[0]] * texts)
    return transcript_pb.AppendEntriesRequest(
        session_id="ses_" + "0" * 26,
        request_id="a",
        entries=[entry_pb2.EntryBody(message=message)] * 256,
    )


@pytest.mark.parametrize(
    "request_", [append_of(256), router_pb.GenerateRequest(messages=[ONE_TEXT] * 40_000)], ids=lambda one: ""
)
def test_largest_requests_of_the_contracts_are_decoded(request_: Message) -> None:
    decode = decode_valid(decode_with(type(request_).FromString), request_.DESCRIPTOR)
    assert decode(request_.SerializeToString(), CALL) == request_


def test_request_above_the_budget_is_refused_with_the_limit_before_it_is_decoded() -> None:
    def decode(data: bytes, call: Call) -> Message:
        raise AssertionError("it was decoded")

    request = router_pb.GenerateRequest(messages=[ONE_TEXT] * 40_001).SerializeToString()
    with pytest.raises(MeshError) as caught:
        decode_valid(decode, router_pb.GenerateRequest.DESCRIPTOR)(request, CALL)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.facts == {"max_element_count": str(MAX_ELEMENTS)}


def test_check_of_a_large_message_ends_at_the_first_violation() -> None:
    decode = decode_valid(
        decode_with(router_pb.GenerateRequest.FromString), router_pb.GenerateRequest.DESCRIPTOR
    )
    with pytest.raises(MeshError) as caught:
        decode(b"\x2a\x00" * 30_000, CALL)
    assert len(caught.value.violations) == 1
    with pytest.raises(MeshError) as caught:
        decode(b"\x2a\x00" * 100, CALL)
    assert len(caught.value.violations) == 20
    limits = CallLimits(DefaultCallLimits(), monotonic=lambda: 0.0)
    of_a_client = Call(NO_CONTEXT, request_bytes=limits.admit("acme", RpcClass.GENERATE))
    for count, listed in ((65, 1), (64, 20)):
        with pytest.raises(MeshError) as caught:
            decode(b"\x2a\x00" * count, of_a_client)
        assert len(caught.value.violations) == listed


def fields_owed(data: bytes) -> float:
    """Return how many fields a tenant owes after a request, beyond what it may send in a second."""
    limits = CallLimits(DefaultCallLimits(), monotonic=lambda: 0.0)
    meter = limits.admit("acme", RpcClass.GENERATE)
    decode = decode_valid(decode_with(router_pb.GenerateRequest.FromString), GENERATE_TYPE)
    with suppress(MeshError):
        decode(data, Call(NO_CONTEXT, request_bytes=meter))
    seconds = {one: limits.seconds_of_debt("acme", one) for one in RpcClass}
    assert len(set(seconds.values())) == 1, "all classes share the fields"
    return seconds[RpcClass.GENERATE] * FIELDS_PER_SECOND


@pytest.mark.parametrize(("texts", "owed"), [(32_768, 0), (50_000, 100_000 - 65_536)])
def test_fields_of_all_calls_have_a_rate(texts: int, owed: int) -> None:
    assert fields_owed(b"\x2a\x02\x08\x01" * texts) == pytest.approx(owed)


def test_fields_before_the_end_of_a_cut_message_count() -> None:
    assert fields_owed(b"\x2a\x00" * 100_000 + b"\x2a") == pytest.approx(100_001 - 65_536)


def test_small_messages_of_many_fields_count() -> None:
    limits = CallLimits(DefaultCallLimits(), monotonic=lambda: 0.0)
    decode = decode_valid(decode_with(router_pb.GenerateRequest.FromString), GENERATE_TYPE)
    for _ in range(200):
        meter = limits.admit("acme", RpcClass.GENERATE)
        with pytest.raises(MeshError):
            decode(b"\x2a\x00" * 500, Call(NO_CONTEXT, request_bytes=meter))
        if limits.seconds_of_debt("acme", RpcClass.GENERATE):
            break
    with pytest.raises(MeshError) as refused:
        limits.admit("acme", RpcClass.READ)
    assert refused.value.facts["limit"] == "fields_per_second"
