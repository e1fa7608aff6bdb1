"""The stubs bring the validation rules along, and agree with `protovalidate` in one process."""

import subprocess
import sys

import pytest

_STUBS = "from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest"
_VALIDATOR = "import protovalidate"
# The rules of the validator, added to the pool of the stubs: a second, different file is refused.
_SAME_POOL = """
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, field_mask_pb2, timestamp_pb2
descriptor_pool.Default().AddSerializedFile(protovalidate.ViolationPb.desc().file.proto.to_binary())
"""
_CHECK = """
from buf.validate import validate_pb2
assert SpawnSessionRequest.DESCRIPTOR.fields_by_name["request_id"].GetOptions().HasExtension(validate_pb2.field)
assert [one.proto.rule_id for one in protovalidate.collect_violations(SpawnSessionRequest(task="t"))]
"""


def run(*lines: str) -> None:
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "lines",
    [
        (_STUBS, _VALIDATOR, _CHECK, _SAME_POOL),
        (_VALIDATOR, _STUBS, _CHECK, _SAME_POOL),
        (_VALIDATOR, _SAME_POOL, _STUBS, _CHECK),
    ],
    ids=["stubs-first", "validator-first", "rules-of-the-validator-first"],
)
def test_stubs_and_validator_share_a_process_in_each_order(lines: tuple[str, ...]) -> None:
    run(*lines)


def test_stubs_need_no_validator() -> None:
    run(
        "import sys",
        "sys.modules['protovalidate'] = None",
        _STUBS,
        "assert SpawnSessionRequest().request_id == ''",
    )
