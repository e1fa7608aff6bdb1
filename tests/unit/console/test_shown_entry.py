"""The arguments of calls, as they are shown."""

import pytest
from spawnmesh_console.clients.shown_entry import arguments_of


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ('{"type":"toolCall","arguments":{"a":12345678901234567890123,"b":1.10}}',
         '{\n  "a": 12345678901234567890123,\n  "b": 1.10\n}'),
        ('{"input":{"path":"x"}}', '{\n  "path": "x"\n}'),
        ('{"arguments":"{\\"path\\": \\"x\\"}"}', '{\n  "path": "x"\n}'),
        ('{"arguments":"no JSON"}', "no JSON"),
        ('{"name":"tool"}', '{\n  "name": "tool"\n}'),
        ("[1]", "[\n  1\n]"),
        ("no JSON", "no JSON"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)  # fmt: skip
def test_arguments_of_a_call_keep_their_digits(block: str, shown: str) -> None:
    assert arguments_of(block) == shown


def test_a_long_block_is_laid_out_as_far_as_it_is_shown() -> None:
    """Otherwise one transcript would hold up the pages of all people."""
    block = '{"arguments":{"a":' + "[" * 90 + "1" + ",1" * 40_000 + "]" * 90 + "}}"
    assert arguments_of(block) == block, "a very long one stays as it is"
    shorter = '{"arguments":{"a":' + "[" * 90 + "1" + ",1" * 20_000 + "]" * 90 + "}}"
    assert len(arguments_of(shorter, 1000)) in range(1000, 1100)
    assert arguments_of(shorter).startswith(arguments_of(shorter, 1000)[:1000])
