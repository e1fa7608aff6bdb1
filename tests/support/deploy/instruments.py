"""The metrics that the services record, with their labels, read from the sources.

The names of labels are those that Prometheus shows.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.support.deploy.rendering import ROOT

_OBSERVABLE = ("observable_gauge", "observable_up_down_counter")
_KINDS = ("counter", "up_down_counter", "histogram", "gauge", *_OBSERVABLE)
_RECORDS = ("add", "record", "set")


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric with its labels.

    `labels` maps a label to all its values if the source states them literally, and otherwise to
    None.
    """

    kind: str
    name: str
    unit: str
    labels: dict[str, frozenset[str] | None]
    description: str = ""


@cache
def instruments() -> tuple[Instrument, ...]:
    """Return the instruments of all services and libraries."""
    files = (file for folder in ("services", "libs") for file in (ROOT / folder).rglob("*.py"))
    texts = (text for text in (file.read_text() for file in files) if ".create_" in text)
    return tuple(one for text in texts for one in _Module(ast.parse(text)).instruments())


class _Module:
    """One source file.

    A name in an expression is resolved by its assignment in the surrounding function, its class, or
    the file.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._around = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}

    def instruments(self) -> Iterator[Instrument]:
        for call in self._calls(*(f"create_{kind}" for kind in _KINDS)):
            assert isinstance(call.func, ast.Attribute)
            (name,) = self._strings(call.args[0])
            told = [one.value for one in call.keywords if one.arg == "description"]
            units = [text for one in call.keywords if one.arg == "unit" for text in self._strings(one.value)]
            labels: dict[str, frozenset[str] | None] = {}
            observable = call.func.attr.removeprefix("create_") in _OBSERVABLE
            for record in self._observations(call) if observable else self._records(call):
                for label, values in self._labels(record.args[1]):
                    known = labels.get(label, frozenset())
                    labels[label] = known | values if known is not None and values is not None else None
            yield Instrument(
                call.func.attr.removeprefix("create_"),
                name,
                "".join(units),
                labels,
                "".join(map(_text, told)),
            )

    def _records(self, made: ast.Call) -> Iterator[ast.Call]:
        """Yield each call that records a value with the instrument: by the attribute that holds it,
        or by any name if a function returns it.
        """
        target = self._around[made]
        held = None
        if isinstance(target, ast.Assign):
            held = ast.unparse(target.targets[0])
        elif isinstance(target, ast.AnnAssign):
            held = ast.unparse(target.target)
        for call in self._calls(*_RECORDS):
            assert isinstance(call.func, ast.Attribute)
            receiver = call.func.value
            fits = ast.unparse(receiver) == held if held else isinstance(receiver, ast.Name)
            if (
                fits
                and len(call.args) == 2
                and (not held or self._scope(call, ast.ClassDef) is self._scope(made, ast.ClassDef))
            ):
                yield call

    def _observations(self, made: ast.Call) -> Iterator[ast.Call]:
        """Yield the observations of the callbacks: methods of the class, or functions in the
        surrounding function.
        """
        callbacks = [
            one for given in made.keywords if given.arg == "callbacks" for one in ast.walk(given.value)
        ]
        names = {
            one.attr if isinstance(one, ast.Attribute) else one.id
            for one in callbacks
            if isinstance(one, (ast.Attribute, ast.Name))
        }
        for function in ast.walk(self._tree):
            if isinstance(function, ast.FunctionDef) and function.name in names:
                for node in ast.walk(function):
                    if (
                        isinstance(node, ast.Call)
                        and ast.unparse(node.func) == "Observation"
                        and len(node.args) == 2
                    ):
                        yield node

    def _calls(self, *methods: str) -> Iterator[ast.Call]:
        for node in ast.walk(self._tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in methods
                and node.args
            ):
                yield node

    def _labels(self, expression: ast.expr) -> Iterator[tuple[str, frozenset[str] | None]]:
        """Yield every label that the expression may have, by its name in Prometheus."""
        match expression:
            case ast.Dict():
                for key, value in zip(expression.keys, expression.values, strict=True):
                    if key is None:
                        yield from self._labels(value)
                    else:
                        for name in self._strings(key):
                            yield name.replace(".", "_"), self._texts(value)
            case ast.IfExp():
                yield from self._labels(expression.body)
                yield from self._labels(expression.orelse)
            case ast.Name() | ast.Attribute():
                for key, value in self._assigned(expression):
                    if key is None:
                        yield from self._labels(value)
                    else:
                        for name in self._strings(key):
                            yield name.replace(".", "_"), self._texts(value)
            case _:
                raise AssertionError(f"labels that cannot be read from the source: {ast.unparse(expression)}")

    def _texts(self, value: ast.expr) -> frozenset[str] | None:
        match value:
            case ast.Constant(value=str(text)):
                return frozenset({text})
            case ast.IfExp():
                both = self._texts(value.body), self._texts(value.orelse)
                return None if both[0] is None or both[1] is None else both[0] | both[1]
            case _:
                return None

    def _strings(self, expression: ast.expr) -> list[str]:
        """Return the text of a constant, or of the constant that a name refers to."""
        if isinstance(expression, ast.Constant):
            return [str(expression.value)]
        return [text for _, value in self._assigned(expression) for text in self._strings(value)]

    def _assigned(self, name: ast.expr) -> list[tuple[ast.expr | None, ast.expr]]:
        """Return the values that are assigned to the name in the nearest scope.

        An assignment to a member of it has the key of the member.
        """
        text = ast.unparse(name)
        kinds = (
            (ast.ClassDef,)
            if isinstance(name, ast.Attribute)
            else (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
        )
        scope: ast.AST | None = name
        while scope is not None:
            scope = self._scope(scope, *kinds)
            found = [] if scope is None else list(_assignments(scope, text))
            if found:
                return found
        return []

    def _scope(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        around = self._around.get(node)
        while around is not None and not isinstance(around, kinds):
            around = self._around.get(around)
        return around


def _assignments(scope: ast.AST, text: str) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if ast.unparse(target) == text:
                yield None, value
            elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == text:
                yield target.slice, value


def _text(expression: ast.expr) -> str:
    value = ast.literal_eval(expression)
    assert isinstance(value, str)
    return value
