"""The tests that run code blocks of pages, found by their calls of `typed` and `all_typed`.

A call is a reading if no block of the page can be left out of it unseen:

- `FIRST, SECOND = typed(…)` reads the blocks whose names the module uses. `_` reads nothing.
- A loop that ends with the last block, a `join`, a `map` and a parametrization read all of them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.sources import ROOT

_CALLS = {"typed": "sh", "all_typed": ""}
"""The functions, and the language without an argument."""
_PAGES = "PAGES"
"""The variable of a module that reads several pages."""
_IN_SUPPORT = "tests/support/"
"""Other modules import the names of these ones."""


class BlocksLeftOut(Exception):
    """A call whose result is used so that it may leave blocks out."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A call in a test. `names` are those of the blocks, with an empty one for a block that is not
    used; None means that all blocks are used. An empty language means every language.
    """

    file: str
    page: str
    language: str
    names: tuple[str, ...] | None

    def reads(self, place: int, count: int) -> bool:
        """Return whether it reads the block at this place among so many."""
        return self.names is None or (len(self.names) == count and self.names[place] != "")


def readings_of_tests() -> list[Reading]:
    """Return the readings in all tests. Raises BlocksLeftOut."""
    return [
        one
        for file in sorted(ROOT.glob("tests/**/*.py"))
        if "code_blocks import" in file.read_text() and file.parent != Path(__file__).parent
        for one in readings(file.read_text(), str(file.relative_to(ROOT)))
    ]


def readings(source: str, file: str) -> Iterator[Reading]:
    """Yield the readings of a module. Raises BlocksLeftOut."""
    module = ast.parse(source)
    above = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
    for node in above:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            page, *language = node.args
            pages = _texts(page) or _texts(_value_of(_PAGES, module))
            for one in pages:
                found = _texts(*language) or [_CALLS[node.func.id]]
                yield Reading(file, one, found[0], _names(node, above, file))


def _names(call: ast.Call, above: dict[ast.AST, ast.AST], file: str) -> tuple[str, ...] | None:
    used = [one for one in above if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    ids = {one.id for one in used}
    match above[call]:
        case ast.Assign(targets=[ast.Tuple(elts=targets)]) if all(
            isinstance(one, ast.Name) for one in targets
        ):
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            is_used = [name != "_" and (name in ids or file.startswith(_IN_SUPPORT)) for name in names]
            return tuple(name if one else "" for name, one in zip(names, is_used, strict=True))
        case ast.Assign(targets=[ast.Name(id=name)]):
            places: list[ast.expr] = [one for one in used if one.id == name]
        case _:
            places = [call]
    if not places or not all(_takes_all(above, one) for one in places):
        raise BlocksLeftOut(f"{file}:{call.lineno}: name each block, or do the same with all of them")
    return None


def _takes_all(above: dict[ast.AST, ast.AST], blocks: ast.expr) -> bool:
    """Return whether the expression or statement around the blocks does the same with each."""
    match node := above[blocks]:
        case ast.For(iter=one):
            return one is blocks and not any(
                isinstance(step, ast.Continue | ast.Break) for step in ast.walk(node)
            )
        case ast.comprehension(iter=one, ifs=[]):
            return one is blocks
        case ast.Call(func=ast.Name(id="enumerate")):
            return _takes_all(above, node)
        case ast.Call(func=ast.Attribute(attr="join" | "parametrize")) | ast.Call(func=ast.Name(id="map")):
            return True
    return False


def _value_of(variable: str, module: ast.Module) -> ast.expr:
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == variable:
                return value
    raise BlocksLeftOut(f"there is no {variable}")


def _texts(*nodes: ast.expr) -> list[str]:
    return [
        one.value
        for node in nodes
        for one in ([node] if isinstance(node, ast.Constant) else getattr(node, "elts", []))
        if isinstance(one, ast.Constant)
    ]
