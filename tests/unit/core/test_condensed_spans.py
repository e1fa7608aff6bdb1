"""A trace made short: one line for an RPC, and no line for what took no time."""

from spawnmesh_core.condensed_spans import condensed
from spawnmesh_core.spans import Span

MS = 1_000_000


def span(
    span_id: str, parent: str, name: str, service: str, milliseconds: float, kind: str = "internal"
) -> Span:
    end = int(milliseconds * MS)
    return Span("t", span_id, parent, name, service, 0, end, kind, "unset", "", {}, [], [])


ROOT = span("root", "", "SpawnSession", "session", 1000)


def told(*spans: Span) -> list[tuple[str, str, str]]:
    short = condensed([ROOT, *spans])
    assert {one.parent_span_id for one in short} <= {"", *(one.span_id for one in short)}
    return [(one.span_id, one.parent_span_id, one.name) for one in short[1:]]


def test_call_and_its_serving_are_one_line():
    call = span("a", "root", "pkg.HookService/Ask", "session", 50, "client")
    served = span("b", "a", "pkg.HookService/Ask", "hook", 40, "server")
    inside = span("c", "b", "plugin", "hook", 30)

    assert told(call, served, inside) == [("b", "root", "Ask"), ("c", "b", "plugin")]


def test_call_that_nobody_answered_stays():
    call = span("a", "root", "pkg.HookService/Ask", "session", 50, "client")

    assert told(call) == [("a", "root", "Ask")]


def test_short_spans_go_unless_they_tell_or_stand_above_one_that_stays():
    short = span("a", "root", "short", "session", 1)
    above = span("b", "root", "above", "runner", 1)
    tool = span("c", "b", "execute_tool read_file", "runner", 0.5)

    assert told(short, above, tool) == [("b", "root", "above"), ("c", "b", "execute_tool read_file")]


def test_every_service_still_has_a_line():
    assert told(
        span("a", "root", "quick", "transcript", 0.1), span("b", "root", "quicker", "transcript", 0.05)
    ) == [("a", "root", "quick")]


def test_call_that_was_served_twice_stays_above_both():
    call = span("a", "root", "pkg.HookService/Ask", "session", 50, "client")
    first = span("b", "a", "pkg.HookService/Ask", "hook", 20, "server")
    second = span("c", "a", "pkg.HookService/Ask", "hook", 20, "server")

    assert told(call, first, second) == [("a", "root", "Ask"), ("b", "a", "Ask"), ("c", "a", "Ask")]


def test_short_span_that_is_named_stays() -> None:
    short = span("a", "root", "short", "session", 1)
    above = span("b", "root", "above", "session", 1)
    named = span("c", "b", "named", "session", 0.5)

    assert [one.span_id for one in condensed([ROOT, short, above, named], {"c"})] == ["root", "b", "c"]


def test_only_the_name_of_an_rpc_is_shortened() -> None:
    assert told(span("a", "root", "chat meta/llama", "model-router", 50)) == [
        ("a", "root", "chat meta/llama")
    ]
    assert told(span("a", "root", "pkg.v1.HookService/Ask", "hook", 50)) == [("a", "root", "Ask")]
