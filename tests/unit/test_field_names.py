"""Fields have one spelling in help and in errors: that of the contracts, snake_case."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tests.support.command.command_tree import commands
from tests.support.command.fake_mesh import mesh, spawnmesh

__all__ = ["mesh"]

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTORS = ROOT / "protos" / "baseline.binpb"
WORD = re.compile(r"(?<![\w-])[A-Za-z0-9]+(?:-?[A-Za-z0-9]+)+(?![\w-])")
OTHERS = {
    "model-router",
    "webhook-secret",
}
"""Words with a dash that are names of services and commands, and fields with an underscore."""


@cache
def other_spellings() -> dict[str, str]:
    """Return the fields of the contracts by the spellings that no text for people has."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    names = {field for one in files if one.package.startswith("spawnmesh.") for field in _fields(one)}
    found = {}
    for name in names:
        first, *rest = name.split("_")
        if rest:
            found[first + "".join(map(str.capitalize, rest))] = name
            found["-".join((first, *rest))] = name
    return {spelling: name for spelling, name in found.items() if spelling not in OTHERS}


def _fields(message: Any) -> Iterator[str]:
    for below in getattr(message, "message_type", getattr(message, "nested_type", ())):
        yield from _fields(below)
    yield from (field.name for field in getattr(message, "field", ()))


def misspelt(text: str) -> set[str]:
    return {word for word in WORD.findall(text) if word in other_spellings()}


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are sentences, apart from docstrings. In an f-string, the
    text between two values is one.
    """
    tree = ast.parse(file.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and " " in node.value.strip():  # type: ignore[attr-defined]
            yield node.lineno, node.value  # type: ignore[attr-defined]


def test_help_spells_fields_as_the_contracts_do() -> None:
    found = {}
    for names, command in commands(spawnmesh()):
        parameters = [f"{one.metavar or ''} {getattr(one, 'help', '') or ''}" for one in command.params]
        found[names] = set().union(*map(misspelt, (command.help or "", command.epilog or "", *parameters)))
    assert len(found) > 60
    assert {names: words for names, words in found.items() if words} == {}


def test_messages_of_services_and_of_the_command_spell_fields_as_the_contracts_do() -> None:
    files = [
        file
        for folder in ("libs", "services")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in file.name and ".venv" not in file.parts
    ]
    texts = [(file, line, text) for file in files for line, text in texts_of(file)]
    assert len(texts) > 2000
    found = {f"{file.relative_to(ROOT)}:{line}": misspelt(text) for file, line, text in texts}
    assert {place: words for place, words in found.items() if words} == {}


def test_another_spelling_is_found() -> None:
    assert misspelt("repeat it with the pageToken of the page-token, or the page_token") == {
        "pageToken",
        "page-token",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [("max-spawn-depth=3", "max_spawn_depth"), ("routing.traceContent=true", "trace_content")],
)
async def test_tenant_update_names_the_fields_that_there_are(mesh: Any, change: str, field: str) -> None:
    ended = await mesh.run("tenant", "update", "demo", "--set", change)
    said = " ".join(ended.stderr.replace("│", " ").split())
    assert ended.exit_code == 2
    assert f"there is no field {change.partition('=')[0]}; use one of " in said
    assert field in said
    assert misspelt(said.partition("use one of")[2]) == set()


async def test_agent_put_names_the_fields_that_there_are(mesh: Any, tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text('{"agent_id": "a", "approval": {"tool": ["x"]}}')
    ended = await mesh.run("agent", "put", str(file))
    assert ended.exit_code != 0
    assert "there is no field approval.tool; use one of tools, " in ended.stderr
