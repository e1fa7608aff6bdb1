"""Statements name the kinds of turns as literals: those of the domain."""

import re
from importlib.resources import files

from spawnmesh_transcript.domain.entries import TURN_KINDS

_KINDS = re.compile(r"\bin \(('[A-Z_]+'(?:, '[A-Z_]+')+)\)")


def test_statements_have_the_turn_kinds_of_the_domain() -> None:
    store = files("spawnmesh_transcript") / "store"
    texts = {file.name: file.read_text() for file in store.iterdir() if file.name.endswith(".sql")}
    lists = {(name, kinds) for name, text in texts.items() for kinds in _KINDS.findall(text)}
    assert {kinds for _, kinds in lists} == {", ".join(f"'{kind}'" for kind in TURN_KINDS)}
    assert {name for name, _ in lists} == {
        "appends.sql",
        "entries.sql",
        "imports.sql",
        "recounts.sql",
        "summaries.sql",
    }
