"""The time to mask a text is proportional to its length, for every text: masking blocks
the process.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator

import pytest
from spawnmesh_core import secret_forms, secrets, unmasking
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_core.secrets import mask_document
from spawnmesh_core.unmasking import NotRestorable, unmask_document

LENGTH = 40_000
SECONDS = (
    # Fifty times what the slowest takes; one that goes over a text again and again takes far
    # longer.
    3.0
)

LINES = ("A" * 60 + "\n") * 3
PIECES = [
    *("-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "PRIVATE KEY-----", "-----END ", "A", "A" * 40, "a" * 39, "0", "1a", " ", "\n", "\t"),
    *("\\", "\\n", '"', "'", "/", "//", ":", "://", "@", "a:b", "bearer ", "authorization: ", "authorization:", "basic ", "api_key"),
    *("api_key=", "secret", "secret key", "secret key is ", "=", ".", "-", "_", "sk-", "xoxb-", "xoxb-a-", "a-", "sk-proj-", "eyJ"),
    *("eyJaaaaaaaaaa.", "hooks.slack.com/services/", "/AAAAAA", "12345678:", "\x1b[0m", "+", "x", "AKIA", "ABSK", "$", "$a", "a://"),
    *("a://b:", "'a", "[$redacted:", "data:", ",", "A" * 60 + "\n", "ghp_", "@sha256:", " " * 39, "(", "[", "é"),
]  # fmt: skip
BEFORE = ("", LINES)


def expressions() -> Iterator[Callable[[str], object]]:
    """Return the expressions that search; the others are matched at the start of a text."""
    for module in (secrets, unmasking):
        for made in vars(module).values():
            if isinstance(made, re.Pattern):
                yield from (made.match, made.fullmatch)
    yield from (secrets._PUNCTUATION.search, unmasking._ANY_MARKER.search)
    for form in secret_forms.FORMS:
        yield from (part.pattern.search for part in form.parts)
        if form.look is not None:
            yield form.look.search


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def pumped(before: str, pump: str, behind: str) -> str:
    return before + pump * (LENGTH // len(pump)) + behind


def texts(seed: int) -> Iterator[str]:
    """Yield each piece many times after a piece that may start a secret, and some combinations."""
    if seed < len(BEFORE):
        yield from (pumped(BEFORE[seed], piece, "!") for piece in PIECES)
        return
    drawn = random.Random(seed)
    for _ in range(len(PIECES)):
        before, pump, behind = (
            "".join(drawn.choices(PIECES, k=drawn.randint(least, 3))) for least in (1, 1, 0)
        )
        yield pumped(before, pump, behind)


@pytest.mark.parametrize("seed", range(len(BEFORE) + 2))
def test_no_expression_goes_over_a_text_again_and_again(seed: int) -> None:
    found = list(expressions())
    assert len(found) > 20
    for text in texts(seed):
        for find in found:
            assert seconds_of(lambda find=find, text=text: find(text)) < SECONDS, (find, text[:200])  # type: ignore[misc]


@pytest.mark.parametrize(
    "document",
    [
        {"note": "sk-", "text": LINES + " " * 100_000 + "!"},
        {"note": "sk-", "text": "data:" + LINES + "\t \n" * 30_000 + "="},
        {"sk-" + "k" * 500_000: ["a"] * 5_000},
        {"api_key": {"_" * 500_000 + "secret_key": ["a" * 40] * 5_000}},
        {"Authorization": ["basic " + " " * 200_000]},
        {"note": "sk-", "list": [{"_" * 100: "basic "}] * 5_000},
    ],
    ids=["spaces", "data", "long key", "long name of a secret", "basic", "many keys"],
)
def test_a_document_is_masked_in_time_in_proportion(document: object) -> None:
    assert seconds_of(lambda: mask_document(json.dumps(document))) < SECONDS


def test_markers_are_replaced_in_time_in_proportion() -> None:
    shown = marker(Secret.PROVIDER_KEY)
    original = json.dumps(
        {"a": [shown] * 20_000, "b": ["[$redacted:" + "a" * 20] * 5_000, "c": {"d" * 200_000: ["\\"] * 1_000}}
    )
    with pytest.raises(NotRestorable):
        unmask_document(json.dumps({"a": shown}), original, 1_000_000)
    assert seconds_of(lambda: unmask_document('{"a": "\\\\"}', original, 1_000_000)) < SECONDS
