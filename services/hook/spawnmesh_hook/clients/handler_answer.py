"""The answer of a plugin: its bytes, as the connection brought them, and how they are read.

A worker process reads large ones. 2 MiB of JSON can take seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import protovalidate
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from spawnmesh_hook.domain import call_failures
from spawnmesh_hook.domain.call_failures import CallFailure

Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class AnswerBytes:
    """The answer of a plugin over gRPC, or of a webhook, which is JSON."""

    data: bytes
    is_json: bool


def read_answer(
    answer_type: type[Answer], sent: AnswerBytes, check_permitted: Callable[[Answer], CallFailure | None]
) -> Answer | CallFailure:
    """Return the answer, or why it is malformed or not permitted."""
    answer = answer_type()
    if sent.is_json:
        try:
            json_format.Parse(sent.data, answer)
        except (json_format.ParseError, UnicodeDecodeError, RecursionError):
            return call_failures.ANSWER_NOT_JSON
    else:
        try:
            answer.ParseFromString(sent.data)
        except DecodeError:
            return call_failures.ANSWER_UNREADABLE
    return _broken_rules(answer) or check_permitted(answer) or answer


def _broken_rules(answer: Message) -> CallFailure | None:
    """Return which fields and rules of the proto the answer breaks, or None for a valid answer."""
    violations = protovalidate.collect_violations(answer)
    if not violations:
        return None
    rules = []
    for violation in violations[:5]:
        path = violation.proto.field.elements if violation.proto.field else ()
        rules.append(f"{'.'.join(element.field_name for element in path)} ({violation.proto.rule_id})")
    return CallFailure("malformed answer: " + ", ".join(rules))
