"""The rule annotations that the contracts import, taken at run time from the package
`protovalidate`.

Generated stubs import `buf.validate.validate_pb2`. The rules are part of `protovalidate` for its
own runtime only, so this module reads their descriptor from there and adds it to the pool of
`google.protobuf`.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, field_mask_pb2, timestamp_pb2
from google.protobuf.internal import builder
from protovalidate import ViolationPb

_IMPORTED = (
    descriptor_pb2,
    duration_pb2,
    field_mask_pb2,
    timestamp_pb2,
)  # Files the rules refer to; importing them loads them.

DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(ViolationPb.desc().file.proto.to_binary())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, "buf.validate.validate_pb2", globals())
