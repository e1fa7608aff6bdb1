"""The files that results of tools name, as evidence for the demo."""

import json

from spawnmesh.content.v1.message_pb2 import ContentBlock, Message, Text
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh_devstack.demo_published import tool_files


def result(tool: str, value: object, *, text: str = "", is_error: bool = False) -> Entry:
    block = ContentBlock(text=Text(text=f"{json.dumps(value)}\n{text}"))
    message = Message(tool_name=tool, content=[block], is_error=is_error)
    return Entry(body=EntryBody(message=message))


def test_files_of_a_tool_are_those_of_its_results():
    fetched = {"set_id": "att_1", "files": [{"name": "a", "sha256": "aa"}, {"name": "b", "sha256": "bb"}]}
    entries = [
        result("write_file", {"path": "a", "sha256": "aa"}),
        result("fetch_files", fetched, text="more"),
        result("fetch_files", {"code": "ATTACHMENT_SET_STATE"}, is_error=True),
        Entry(),
    ]

    assert [one["sha256"] for one in tool_files(entries, "write_file")] == ["aa"]
    assert [(one["set_id"], one["sha256"]) for one in tool_files(entries, "fetch_files")] == [
        ("att_1", "aa"),
        ("att_1", "bb"),
    ]
