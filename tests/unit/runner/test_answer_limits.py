"""Answers that the transcript refuses lose only what it cannot store."""

from spawnmesh_client.answer_limits import variants_with_fewer_arguments
from spawnmesh_client.turn_messages import calls_of
from spawnmesh_core.json_text import MAX_NODES

from tests.support.model_router.answers import calling


def test_arguments_with_more_values_than_can_be_stored_are_dropped_first() -> None:
    many_values = '{"path": "a", "x": [' + "1," * MAX_NODES + "1]}"
    answer = calling(("c1", "write_file", many_values), ("c2", "write_file", '{"path": "a"}'))

    smaller = next(variants_with_fewer_arguments(answer))

    dropped, kept = calls_of(smaller)
    assert "or more values than can be stored" in dropped.block_json
    assert kept == calls_of(answer)[1]
