"""The judgement of a call: what is wrong with the way in which it ended."""

from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_runtime.methods import policy_of

from tests.support.security.every_rpc import Answer

SECONDS = 15.0
"""The deadline of a call, far longer than a call takes that does not wait."""

_OF_A_DEFECT = {"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED"}
_OF_A_HANG = {"DEADLINE_EXCEEDED", "CANCELLED"}
_WAIT = {
    "spawnmesh.session.v1.RunService.ClaimRuns": "for a run",
    "spawnmesh.session.v1.SessionService.WaitSession": "for the end of a run",
    "spawnmesh.session.v1.SessionService.SpawnSession": "for the spawn of the same request_id",
}
"""The unary RPCs that may last as long as their caller likes, and what they wait for."""

_INSIDE = ("Traceback", 'File "', "psycopg", "object at 0x", "asyncio.", "<class '")


def is_watch(method: MethodDescriptor) -> bool:
    """Return whether the answers of the RPC do not end by themselves."""
    if method.containing_service.full_name.startswith("grpc."):
        return method.server_streaming
    return policy_of(method).ends_with_token


def problem_of(method: MethodDescriptor, answer: Answer) -> str:
    """Return what is wrong with the end of the call; empty if nothing is."""
    problem = ""
    if answer.code == "OK":
        return ""
    if answer.code in _OF_A_DEFECT:
        problem = f"a call must not end as {answer.code}"
    elif answer.code in _OF_A_HANG:
        if method.full_name not in _WAIT and not is_watch(method):
            problem = f"{answer.code} after {SECONDS:g} s: the call hangs"
    elif answer.reason is None:
        problem = f"{answer.code} without a reason"
    elif any(mark in answer.text for mark in _INSIDE):
        problem = "the message shows the inside of the program"
    return f"{problem}: {answer.text}" if problem else ""
