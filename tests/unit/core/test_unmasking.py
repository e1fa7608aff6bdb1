"""Markers in a written document are replaced by their secrets, or the document is refused."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.json_text import MAX_NODES
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_core.secrets import mask_document
from spawnmesh_core.unmasking import NotRestorable, unmask_document

KEY, OTHER = "ghp_" + "Zy9" * 12, "sk-ant-api03-" + "aB3" * 20
URL = "redis://me:hunter2@cache/0"
PEM = "\n".join(("-----BEGIN PRIVATE KEY-----", *("MIIEvQ+/09" * 6,) * 3, "-----END PRIVATE KEY-----", ""))
SHOWN = marker(Secret.PROVIDER_KEY)
ENOUGH = 1_000_000

ESCAPED = json.dumps({"b": SHOWN}).replace(
    "$", "\\u0024"
)  # JSON in a string that has a marker of its own, and not as such.
ESCAPED_TWICE = json.dumps([ESCAPED])
ESCAPED_KEY = json.dumps({SHOWN: 1}).replace("$", "\\u0024")

_DOCUMENTS = st.recursive(
    st.none()
    | st.integers()
    | st.text().filter(lambda text: "[$redacted:" not in text)
    | st.sampled_from([KEY, f"a {KEY} b", URL, PEM, f'"{PEM}"', json.dumps({"a": KEY, "b": [URL]})]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc \\\"\n", max_size=4) | st.just(KEY), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(_DOCUMENTS, st.sampled_from([None, 2]), st.booleans())
def test_what_is_left_as_it_was_shown_means_what_it_meant(
    document: Any, indent: int | None, ensure_ascii: bool
) -> None:
    original = json.dumps(document, indent=indent, ensure_ascii=ensure_ascii)
    shown = mask_document(original)
    again = json.dumps(json.loads(shown))  # As a plugin writes it, not byte for byte.
    assert json.loads(unmask_document(again, original, ENOUGH)) == document


def test_every_byte_beside_the_markers_is_kept() -> None:
    original = json.dumps({"a": KEY})
    written = f'{{ "b":1.0e5 , "a" :"x \\u0041 {SHOWN}", "b":2}}'
    assert unmask_document(written, original, ENOUGH) == f'{{ "b":1.0e5 , "a" :"x A {KEY}", "b":2}}'
    assert unmask_document('{"a": "\\u0041"}', original, ENOUGH) == '{"a": "\\u0041"}'


def test_a_marker_that_is_written_with_escapes_is_one() -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in SHOWN)
    original = json.dumps({"a": KEY})
    assert json.loads(unmask_document(f'{{"a":"{escaped}"}}', original, ENOUGH)) == {"a": KEY}
    nested = json.loads(unmask_document(json.dumps({"a": f'{{"b":"{escaped}"}}'}), original, ENOUGH))
    assert json.loads(nested["a"]) == {"b": KEY}


def test_a_key_that_was_shown_with_a_marker_gets_its_own_back() -> None:
    original = json.dumps({"env": {f"of {KEY}": "prod"}})
    shown = mask_document(original)
    assert json.loads(shown) == {"env": {f"of {SHOWN}": "prod"}}
    written = json.dumps({"env": {f"of {SHOWN}": "test", "more": 1}})
    assert json.loads(unmask_document(written, original, ENOUGH)) == {"env": {f"of {KEY}": "test", "more": 1}}


@pytest.mark.parametrize(
    ("written", "original"),
    [
        ({f"of {SHOWN}": 1}, {KEY: 1}),
        ({SHOWN: 1}, {KEY: 1, OTHER: 2}),
        ({"a": SHOWN}, {SHOWN: 1, "a": KEY}),
        ({"a": SHOWN}, {"a": KEY, "b": OTHER}),
        ({"a": SHOWN}, {"a": KEY, "b": [f"the model wrote {SHOWN}"]}),
        ({"a": SHOWN}, {"a": SHOWN}),
        ({"a": SHOWN}, {"a": KEY, "b": ESCAPED}),
        ({"b": ESCAPED}, {"a": KEY, "b": ESCAPED}),
        ({"b": ESCAPED_TWICE}, {"a": KEY, "b": ESCAPED_TWICE}),
        ({"b": ESCAPED_KEY}, {KEY: 1, "b": ESCAPED_KEY}),
        ({SHOWN: 1}, {KEY: 1, "b": [{SHOWN: 2}]}),
        ({SHOWN: 1}, {SHOWN: 2}),
        ({"a": marker(Secret.PRIVATE_KEY)}, {"a": f'{{"b": "{PEM}", "c": "[\\u0024redacted:private_key]"}}'}),
        ({"a": SHOWN}, {}),
        ({SHOWN: 1}, {"a": KEY}),
        ({"a": [{"b": SHOWN[:-1]}]}, {"a": KEY}),
        ({"a": "[$redacted:passport]"}, {"a": KEY}),
        ({"a": marker(Secret.PRIVATE_KEY)}, {"a": json.dumps({"b": PEM}).replace("-", "\\u002d")}),
        ({"a": marker(Secret.PRIVATE_KEY)}, {"a": PEM, "b": json.dumps({"b": PEM})}),
    ],
)  # fmt: skip
def test_a_marker_that_does_not_tell_its_secret_is_refused(written: Any, original: Any) -> None:
    with pytest.raises(NotRestorable) as caught:
        unmask_document(json.dumps(written), json.dumps(original), ENOUGH)
    assert not any(secret in str(caught.value) for secret in (KEY, OTHER, PEM))


@pytest.mark.parametrize("original", ["", "{", '{"a": "' + KEY])
def test_what_was_never_shown_gives_nothing_back(original: str) -> None:
    assert unmask_document('{"a": 1}', original, ENOUGH) == '{"a": 1}'
    with pytest.raises(NotRestorable):
        unmask_document(json.dumps({"a": SHOWN}), original, ENOUGH)


def test_many_markers_of_a_long_secret_do_not_fill_the_memory() -> None:
    key = PEM.replace("MIIEvQ+/09", "MIIEvQ+/09" * 5_000)
    written = json.dumps({"a": marker(Secret.PRIVATE_KEY) * 400})
    original = json.dumps({"a": key})
    assert len(key) > 500_000
    tracemalloc.start()
    try:
        with pytest.raises(NotRestorable):
            unmask_document(written, original, ENOUGH)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_an_answer_of_too_many_values_in_its_strings_is_refused() -> None:
    part = json.dumps({"a": "\\n", "b": [0] * (MAX_NODES // 2)})
    with pytest.raises(NotRestorable):
        unmask_document(
            json.dumps({"a": [part, part], "key": SHOWN}), json.dumps({"a": KEY}), 64 * 1024 * 1024
        )
