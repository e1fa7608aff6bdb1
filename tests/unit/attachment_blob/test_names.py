import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_attachment_blob.domain import NameProblem, duplicate_key, name_problem

DEVICES = [
    *["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"],
    *[f"{port}{digit}" for port in ("COM", "LPT") for digit in "123456789¹²³"],
]
PLAIN = st.text(st.characters(categories=["L", "N"], max_codepoint=0x2FF), min_size=1, max_size=40)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["{}", "{}.txt", "{}.tar.gz", "{} .txt", "{}   .txt", "{}\u00a0.txt"])
def test_device_is_refused_in_every_form(device: str, form: str) -> None:
    for spelled in (device, device.lower(), device.title()):
        assert name_problem(form.format(spelled)) is NameProblem.DEVICE


@pytest.mark.parametrize(
    "name",
    [
        *["COM0", "COM10.txt", "COM", "LPT.log", "CONSOLE", "nul1", "auxiliary.c", "x.con", "CLOCK", "CONIN"],
        *[".manifest.json.bak", "manifest.json", ".manifest", "x.manifest.json", "_.manifest.json"],
        *[
            "a..b",
            "...a",
            ".hidden",
            "..a",
            "~",
            "-rf",
            "a;b&c",
            "100%",
            "a'b",
            "[x]{y}(z).txt",
            "$HOME",
            "`id`",
        ],
        *[
            "日本語.txt",
            "na\u00efve.txt",
            "nai\u0308ve.txt",
            "\u0645\u0644\u0641.txt",
            "\u2764\ufe0f.png",
            "😀.png",
        ],
        *["two  spaces", "wide\u3000space", "a", "a" * 255, "é" * 127],
    ],
)
def test_ordinary_name_is_accepted(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *[".manifest.json", ".MANIFEST.JSON", ".Manifest.Json", "．manifest．json", "\u2024manifest.json"],
        *[
            ".\uff4d\uff41\uff4e\uff49\uff46\uff45\uff53\uff54.json",
            ".manife\ufb06.json",
            ".manife\u017ft.json",
        ],
        *[".\U0001d426anifest.json", ".man\u0131fest.json", ".MAN\u0130FEST.JSON", ".man\u2170fest.json"],
    ],
)
def test_manifest_name_is_refused_in_every_spelling(name: str) -> None:
    assert name_problem(name) is NameProblem.MANIFEST


@pytest.mark.parametrize("character", [*'/\\<>:"|?*'])
def test_reserved_character_is_refused(character: str) -> None:
    assert name_problem(f"a{character}b") is NameProblem.RESERVED_CHARACTER


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", NameProblem.EMPTY),
        (".", NameProblem.DOTS),
        ("..", NameProblem.DOTS),
        ("...", NameProblem.DOTS),
        ("a.", NameProblem.DOTS),
        ("\uff0e", NameProblem.DOTS),
        ("\uff0e\uff0e", NameProblem.DOTS),
        ("\u2025", NameProblem.DOTS),
        ("a .", NameProblem.DOTS),
        ("a. ", NameProblem.EDGE_SPACE),
        (" ", NameProblem.EDGE_SPACE),
        ("a" * 256, NameProblem.TOO_LONG),
        ("é" * 128, NameProblem.TOO_LONG),
        ("😀" * 64, NameProblem.TOO_LONG),
        ("a\ufe0f.txt", NameProblem.UNSEEN_CHARACTER),
        ("\ufe0f", NameProblem.UNSEEN_CHARACTER),
        ("\ud83d\ude00.txt", NameProblem.UNSEEN_CHARACTER),
    ],
)
def test_name_is_refused_by_its_rule(name: str, problem: NameProblem) -> None:
    assert name_problem(name) is problem


def test_every_invisible_character_is_refused_anywhere() -> None:
    unseen = [
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]
    named = [
        "\u200b",
        "\u200d",
        "\u202e",
        "\u2066",
        "\u2069",
        "\u061c",
        "\ufeff",
        "\u00ad",
        "\u0085",
        "\x7f",
        "\x00",
    ]
    others = [
        *"\ufffd\ufdd0\ufdef\ufffe\uffff\U0001ffff\U0010fffe"
        "\u034f\u3164\uffa0\u115f\U000e0101\U000e0fff\u2065"
    ]
    assert set(named) < set(unseen)
    for char in [*unseen, *others]:
        for name in (char, f"{char}a", f"a{char}b", f"a{char}"):
            assert name_problem(name) is NameProblem.UNSEEN_CHARACTER, ascii(name)


def test_every_space_is_refused_at_both_ends() -> None:
    spaces = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) == "Zs"]
    assert len(spaces) > 10
    for space in spaces:
        assert name_problem(f"{space}a.txt") is NameProblem.EDGE_SPACE
        assert name_problem(f"a.txt{space}") is NameProblem.EDGE_SPACE


@given(st.text(st.characters(), max_size=300))
def test_accepted_name_is_one_plain_path_component(name: str) -> None:
    if name_problem(name) is None:
        assert 1 <= len(name.encode("utf-8")) <= 255
        assert not set(name) & set('/\\<>:"|?*\0')
        assert name == name.strip()
        assert name.rstrip(". ") == name


@given(PLAIN, st.sampled_from([*"\u202e\u200b\u0000\u2028\ufffd\ud800/\\"]), PLAIN)
def test_one_bad_character_makes_any_name_invalid(before: str, bad: str, after: str) -> None:
    assert name_problem(before + bad + after) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A.txt", "a.TXT"),
        ("\u00e9.txt", "e\u0301.txt"),
        ("\u00c9.txt", "e\u0301.txt"),
        ("stra\u00dfe", "STRASSE"),
        ("\u03c3", "\u03c2"),
        ("\u212b", "\u00e5"),
        ("\u0390", "\u03b9\u0308\u0301"),
        ("\u03b1\u0345\u0301", "\u03b1\u0301\u0345"),
    ],
)
def test_names_equal_but_for_case_or_composition_share_a_key(one: str, other: str) -> None:
    assert duplicate_key(one) == duplicate_key(other)


@given(st.text(max_size=40))
def test_key_is_stable_under_case_and_composition(name: str) -> None:
    key = duplicate_key(name)
    assert duplicate_key(key) == key
    assert duplicate_key(unicodedata.normalize("NFD", name)) == key
    assert duplicate_key(unicodedata.normalize("NFC", name).casefold()) == key


def test_different_names_keep_different_keys() -> None:
    assert len({duplicate_key(name) for name in ["a.txt", "b.txt", "a.txt ", "á.txt", "ａ.txt"]}) == 5
