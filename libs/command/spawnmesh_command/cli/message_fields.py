"""Find fields that a message of the contracts does not have, before JSON is parsed into it.

The parser of Protocol Buffers names the fields that there are as JSON spells them, and the command
and the contracts spell them in snake_case.
"""

from typing import Any

from google.protobuf.descriptor import Descriptor


def field_problem(value: object, message: Descriptor, *, in_json: bool, path: str = "") -> str:
    """Return why a value has a field that the message lacks, with its path; empty if it has none.

    With `in_json`, fields may also be spelled as JSON spells them.
    """
    if isinstance(value, list):
        return next(filter(None, (_problem(one, message, in_json, path) for one in value)), "")
    return _problem(value, message, in_json, path)


def _problem(value: Any, message: Descriptor, in_json: bool, path: str) -> str:
    is_plain = message.GetOptions().map_entry or message.full_name.startswith("google.protobuf.")
    if is_plain or not isinstance(value, dict):
        return ""
    for name, below in value.items():
        field = message.fields_by_name.get(name)
        if field is None and in_json:
            field = message.fields_by_camelcase_name.get(name)
        at = f"{path}.{name}" if path else name
        if field is None:
            return f"there is no field {at}; use one of {', '.join(message.fields_by_name)}"
        if field.message_type is not None and (
            found := field_problem(below, field.message_type, in_json=in_json, path=at)
        ):
            return found
    return ""
