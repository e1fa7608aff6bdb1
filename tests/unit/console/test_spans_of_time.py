"""Times in words: the same ones on the server and in the browser."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import spawnmesh_console
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.spans_of_time import age, fine_span, span

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
AGES = {
    0: "now", 1.4: "now", -1.4: "now", 1.5: "2 s ago", 2.5: "3 s ago", 2.499: "2 s ago", 3.5: "4 s ago",
    59.4: "59 s ago", 59.5: "60 s ago", 60: "1 min ago", 119.999: "1 min ago", 3_599: "59 min ago",
    3_600: "1 h ago", 7_199: "1 h ago", 172_799: "47 h ago", 172_800: "2 days ago", 40_000_000: "462 days ago",
    -1.5: "in 2 s", -60: "in 1 min", -3_600: "in 1 h", -200_000: "in 2 days",
}  # fmt: skip
SPANS = {
    -1: "0 ms", 0: "0 ms", 0.0004: "0 ms", 0.084: "84 ms", 0.9994: "999 ms", 0.9996: "1.0 s", 1: "1.0 s", 1.25: "1.2 s",
    59.94: "59.9 s", 59.96: "1 min 00 s", 60: "1 min 00 s", 184: "3 min 04 s", 3_599.6: "1 h 00 min",
    3_600: "1 h 00 min", 7_500: "2 h 05 min", 360_000: "100 h 00 min",
}  # fmt: skip
# The module speaks to the page when it is loaded: this page is empty.
_EMPTY_PAGE = """
globalThis.window = {};
globalThis.document = { querySelectorAll: () => [], addEventListener: () => {} };
globalThis.setInterval = () => 0;
const { age } = await import("./console.mjs");
const milliseconds = JSON.parse(process.argv[2]);
console.log(JSON.stringify(milliseconds.map((one) => age(0, one))));
"""


@pytest.mark.parametrize(("seconds", "words"), AGES.items())
def test_an_age_in_words(seconds: float, words: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(("seconds", "words"), SPANS.items())
def test_a_span_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_the_browser_has_the_same_words(tmp_path: Path) -> None:
    """Else a time changes while a person looks at it."""
    if shutil.which("node") is None:
        pytest.skip("this machine has no node")
    source = Path(spawnmesh_console.__file__).parent / "static" / "console.js"
    (tmp_path / "console.mjs").write_text(source.read_text())
    (tmp_path / "ages.mjs").write_text(_EMPTY_PAGE)
    edges = [1_500, 59_500, 60_000, 3_600_000, 7_200_000, 86_400_000, 172_800_000]
    near = [edge + delta for edge in edges for delta in (-501, -500, -499, -1, 0, 1, 499, 500, 501)]
    asked = [sign * one for one in (*range(0, 62_000, 250), *near, 10**12) for sign in (1, -1)]
    printed = subprocess.run(
        ["node", "ages.mjs", json.dumps(asked)], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    expected = [age(NOW - timedelta(milliseconds=one), NOW) for one in asked]
    assert dict(zip(asked, json.loads(printed), strict=True)) == dict(zip(asked, expected, strict=True))


@given(st.floats(min_value=-1e9, max_value=1e9))
def test_a_span_never_fails(seconds: float) -> None:
    assert span(seconds).split()[1] in ("ms", "s", "min", "h")


def test_short_spans_of_a_trace_have_tenths_of_a_millisecond() -> None:
    found = [
        fine_span(nanos)
        for nanos in (-1, 0, 40_000, 420_000, 9_949_999, 9_950_000, 84_000_000, 1_250_000_000)
    ]
    assert found == ["0 ms", "0 ms", "<0.1 ms", "0.4 ms", "9.9 ms", "10 ms", "84 ms", "1.2 s"]
