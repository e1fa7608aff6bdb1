"""The metrics that the sources make, with the labels that each is recorded with: read from the sources, named as Prometheus is given them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from tests.support.deploy.rendering import ROOT

_OBSERVABLE = ("observable_gauge", "observable_up_down_counter")
_KINDS = ("counter", "up_down_counter", "histogram", "gauge", *_OBSERVABLE)
_RECORDS = ("add", "record", "set")


@dataclass(frozen=True, slots=True)
class Instrument:
    """`labels` has all values of a label that stand in the source as such, and None for one whose values come from elsewhere."""

    kind: str
    name: str
    unit: str
    labels: dict[str, frozenset[str] | None]


@cache
def instruments() -> tuple[Instrument, ...]:
    """Of all services and libraries."""
    files = (file for folder in ("services", "libs") for file in (ROOT / folder).rglob("*.py"))
    texts = (text for text in (file.read_text() for file in files) if ".create_" in text)
    return tuple(one for text in texts for one in _Module(ast.parse(text)).instruments())


@cache
def series() -> dict[str, Instrument]:
    """The instrument of each series that Prometheus is given, by the series' name as the exporter itself makes it."""
    found: dict[str, Instrument] = {}
    for instrument in instruments():
        registry = CollectorRegistry()
        meter = MeterProvider([PrometheusMetricReader(registry=registry)]).get_meter("test")
        make = getattr(meter, f"create_{instrument.kind}")
        if instrument.kind in _OBSERVABLE:
            make(instrument.name, [_observed], unit=instrument.unit)
        else:
            made = make(instrument.name, unit=instrument.unit)
            getattr(made, {"histogram": "record", "gauge": "set"}.get(instrument.kind, "add"))(1)
        found |= {
            sample.name: instrument
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name != "target_info"
        }
    return found


def _observed(_options: CallbackOptions) -> list[Observation]:
    return [Observation(1)]


class _Module:
    """One source file; an expression is followed to where its names are assigned: in the function around it, its class, or the file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._around = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}

    def instruments(self) -> Iterator[Instrument]:
        for call in self._calls(*(f"create_{kind}" for kind in _KINDS)):
            assert isinstance(call.func, ast.Attribute)
            (name,) = self._strings(call.args[0])
            units = [text for one in call.keywords if one.arg == "unit" for text in self._strings(one.value)]
            labels: dict[str, frozenset[str] | None] = {}
            observable = call.func.attr.removeprefix("create_") in _OBSERVABLE
            for record in self._observations(call) if observable else self._records(call):
                for label, values in self._labels(record.args[1]):
                    known = labels.get(label, frozenset())
                    labels[label] = known | values if known is not None and values is not None else None
            yield Instrument(call.func.attr.removeprefix("create_"), name, "".join(units), labels)

    def _records(self, made: ast.Call) -> Iterator[ast.Call]:
        """Where something is recorded: with the attribute that the instrument became, or where it is handed out with any name."""
        target = self._around[made]
        held = ast.unparse(target.targets[0]) if isinstance(target, ast.Assign) else None
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
        """What the callbacks give: those of the methods of the class, or of the functions in the one around."""
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
        """Every label that the expression may give, as Prometheus names it."""
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
        """The text of a constant, or of the name of one."""
        if isinstance(expression, ast.Constant):
            return [str(expression.value)]
        return [text for _, value in self._assigned(expression) for text in self._strings(value)]

    def _assigned(self, name: ast.expr) -> list[tuple[ast.expr | None, ast.expr]]:
        """What the name is assigned, nearest around it; with the key where it is assigned to a member of it."""
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
