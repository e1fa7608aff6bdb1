"""A model that has only a reference to an earlier output reads the output and answers from it."""

import secrets

from spawnmesh_devstack.stack import Stack

from tests.support.mesh.reader import read_code_word


async def test_model_reads_the_output_behind_a_reference(stack: Stack) -> None:
    code_word = secrets.token_hex(8)
    answer, entries = await read_code_word(stack, code_word, stubs=True)
    assert answer == f"The code word is {code_word}."
    results = [entry.body.message for entry in entries if entry.body.message.tool_call_id]
    assert [message.tool_name for message in results] == [
        "list_files",
        *["read_file"] * 4,
        "transcript_describe",
    ]
    assert code_word in results[1].content[1].text.text, "the stored result is complete"


async def test_model_of_a_tenant_without_the_setting_gets_no_references(stack: Stack) -> None:
    answer, _ = await read_code_word(stack, "x1", stubs=False)
    assert answer == "I cannot go on: the first file is not a reference."
