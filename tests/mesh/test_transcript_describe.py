"""A model that has only a reference to an earlier output reads what is behind it, and answers from there."""

import secrets

from spawnmesh_devstack.stack import Stack

from tests.support.mesh.reader import told_by_the_reader


async def test_model_reads_what_is_behind_a_reference_and_answers_from_there(stack: Stack) -> None:
    code_word = secrets.token_hex(8)
    told, entries = await told_by_the_reader(stack, code_word, stubs=True)
    assert told == f"The code word is {code_word}."
    results = [entry.body.message for entry in entries if entry.body.message.tool_call_id]
    assert [message.tool_name for message in results] == [
        "list_files",
        *["read_file"] * 4,
        "transcript_describe",
    ]
    assert code_word in results[1].content[0].text.text, "what is stored is whole"


async def test_model_of_a_tenant_without_the_setting_gets_no_references(stack: Stack) -> None:
    told, _ = await told_by_the_reader(stack, "x1", stubs=False)
    assert told == "I cannot go on: the first file is not a reference."
