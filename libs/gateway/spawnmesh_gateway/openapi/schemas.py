"""JSON schemas of messages and enums, in the JSON form of Protocol Buffers."""

from collections.abc import Callable, Collection

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from spawnmesh_gateway.openapi.comments import Comments
from spawnmesh_gateway.typed import Json

_INT64 = {"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
_SCALARS: dict[int, Json] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT64: _INT64,
    FieldDescriptor.TYPE_FIXED64: _INT64,
}
_INTEGER: Json = {"type": "integer", "format": "int32"}
_UNSIGNED: Json = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_UNSIGNED_TYPES = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32)
WELL_KNOWN: dict[str, Json] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
    "google.protobuf.FieldMask": {"type": "string", "description": "Names of fields, with commas between."},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Value": {},
    "google.protobuf.ListValue": {"type": "array"},
    "google.protobuf.Any": {
        "type": "object",
        "properties": {"@type": {"type": "string"}},
        "required": ["@type"],
    },
}


class Schemas:
    """The schemas that a document refers to. Each message and enum is described once."""

    def __init__(self, comments: Comments) -> None:
        self.described: dict[str, Json] = {}
        self._comments = comments

    def message(self, message: Descriptor) -> Json:
        """Return the schema of a message, or a reference to it."""
        if message.full_name in WELL_KNOWN:
            return WELL_KNOWN[message.full_name]
        return self._reference(message.full_name, lambda: self.properties(message))

    def properties(self, message: Descriptor, without: Collection[str] = ()) -> Json:
        """Return the schema of a message with its fields in place, but these."""
        fields = [field for field in message.fields if field.name not in without]
        schema: Json = {
            "type": "object",
            "properties": {field.name: self.field(field) for field in fields},
        }
        notes = [self._comments.get(message.full_name, "")]
        for oneof in message.oneofs:
            names = [field.name for field in oneof.fields if field.name not in without]
            if len(names) > 1:
                notes.append(f"At most one of these is set: {', '.join(names)}.")
        return _described(schema, "\n\n".join(note for note in notes if note))

    def field(self, field: FieldDescriptor) -> Json:
        """Return the schema of a field with its comment."""
        return _described(self._field(field), self._comments.get(field.full_name, ""))

    def enum(self, enum: EnumDescriptor) -> Json:
        """Return a reference to the schema of an enum."""
        values = [value.name for value in enum.values]
        return self._reference(enum.full_name, lambda: {"type": "string", "enum": values})

    def _field(self, field: FieldDescriptor) -> Json:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": self._value(message.fields_by_name["value"])}
        if field.is_repeated:
            return {"type": "array", "items": self._value(field)}
        return self._value(field)

    def _value(self, field: FieldDescriptor) -> Json:
        if field.message_type is not None:
            return self.message(field.message_type)
        if field.enum_type is not None:
            return self.enum(field.enum_type)
        if field.type in _UNSIGNED_TYPES:
            return _UNSIGNED
        return _SCALARS.get(field.type, _INTEGER)

    def _reference(self, full_name: str, describe: Callable[[], Json]) -> Json:
        name = full_name.removeprefix("spawnmesh.")
        if name not in self.described:
            self.described[name] = {}  # A message may contain itself.
            self.described[name] = _described(describe(), self._comments.get(full_name, ""))
        return {"$ref": f"#/components/schemas/{name}"}


def _described(schema: Json, text: str) -> Json:
    return {**schema, "description": text} if text and "description" not in schema else schema
