"""A counter that a statement subtracts from cannot become negative: its column has a check."""

import re
from importlib.resources import files

import pytest

SERVICES = ("session", "attachment_blob", "transcript", "model_router", "hook")
_SUBTRACTION = re.compile(r"\b(\w+) = (?:\w+\.)?\1 - ")
_DOMAIN = re.compile(r"create domain (\w+) as \w+ check \(value >= 0\)")


def texts(service: str, folder: str) -> str:
    found = (files(f"spawnmesh_{service}") / folder).iterdir()
    return "\n".join(file.read_text() for file in found if file.name.endswith(".sql"))


def checked_columns(migrations: str) -> set[str]:
    types = "|".join(_DOMAIN.findall(migrations)) or "none"
    of_domains = re.findall(rf"^ +(\w+) +(?:{types})\b", migrations, re.MULTILINE)
    return {*of_domains, *re.findall(r"check \((\w+) >= 0\)", migrations)}


@pytest.mark.parametrize("service", SERVICES)
def test_every_counter_that_is_subtracted_from_has_a_check(service: str) -> None:
    subtracted = set(_SUBTRACTION.findall(texts(service, "store")))
    assert subtracted <= checked_columns(texts(service, "migrations"))


def test_subtractions_are_found() -> None:
    assert _SUBTRACTION.findall(texts("attachment_blob", "store"))
