"""Settings of the backend of traces: what is read, and what is refused in one line."""

from pathlib import Path

import pytest
from spawnmesh_console.clients.trace_backend import TraceBackend
from spawnmesh_console.settings import ConsoleSettings
from spawnmesh_runtime.settings import load_settings

JAEGER = "http://jaeger-query.observability:16686/api/v3/traces/{trace_id}"


def read(monkeypatch: pytest.MonkeyPatch, **changed: str) -> ConsoleSettings:
    targets = {
        f"{service}_TARGET": "localhost:1"
        for service in ("SESSION", "TRANSCRIPT", "MODEL_ROUTER", "ATTACHMENT_BLOB", "HOOK")
    }
    for name, value in {**targets, **changed}.items():
        monkeypatch.setenv(f"CONSOLE_{name}", value)
    return load_settings(ConsoleSettings)


@pytest.mark.parametrize(
    "url",
    ["", JAEGER, "https://tempo.example.com/api/v2/traces/{trace_id}?end=1", "https://x.example/trace?id={trace_id}"],
)  # fmt: skip
def test_an_address_with_the_place_of_the_id_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    assert read(monkeypatch, TRACES_URL=url).traces_url == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://jaeger:16686/api/v3/traces/", "with {trace_id} in its path"),
        ("jaeger:16686/api/v3/traces/{trace_id}", "must be http://"),
        ("ftp://jaeger/{trace_id}", "must be http://"),
        ("file:///traces/{trace_id}", "must be http://"),
        ("http://{trace_id}.example.com/", "with {trace_id} in its path"),
        ("http://{trace_id}.example.com/{trace_id}", "with {trace_id} in its path"),
        ("http://jaeger/#{trace_id}", "with {trace_id} in its path"),
        ("http://jaeger/{trace_id}#a", "must be http://"),
        ("http://jaeger/a b/{trace_id}", "must be http://"),
        ("http://jaeger:0/{trace_id}", "must be http://"),
        ("http://jaeger:port/{trace_id}", "TRACES_URL"),
        ("http://user:word@jaeger/{trace_id}", "must have no password"),
    ],
)
def test_other_addresses_are_refused(monkeypatch: pytest.MonkeyPatch, url: str, said: str) -> None:
    with pytest.raises(SystemExit) as refused:
        read(monkeypatch, TRACES_URL=url)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "content", [None, b"Bearer abc", b"X: a\nno header\n", b"\xff", b"X y: a", b": a", b"X: \x01"]
)
def test_headers_that_cannot_be_sent_end_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "headers"
    if content is not None:
        file.write_bytes(content)
    settings = read(monkeypatch, TRACES_URL=JAEGER, TRACES_HEADERS_FILE=str(file))
    with pytest.raises(SystemExit, match="TRACES_HEADERS_FILE cannot be read as headers"):
        TraceBackend(settings)
