"""`buf breaking` finds a change that breaks clients, and accepts one that does not."""

import subprocess
from pathlib import Path

CONTRACT = "protos/spawnmesh/session/v1/session_service.proto"
FIELD = "  string label = 3 [(buf.validate.field).string.max_bytes = 256];\n"
COMMAND = ["buf", "breaking", "protos", "--against", "protos/baseline.binpb", "--exclude-imports"]
"""The command of `make lint`."""


def breaking(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, cwd=checkout, capture_output=True, text=True)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_command_is_the_one_of_the_makefile() -> None:
    makefile = (Path(__file__).resolve().parents[3] / "Makefile").read_text()
    assert f"@{' '.join(COMMAND)} &&" in makefile


def test_contracts_do_not_break_the_baseline(checkout: Path) -> None:
    found = breaking(checkout)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_removed_field_is_found(checkout: Path) -> None:
    change(checkout / CONTRACT, FIELD, "")
    found = breaking(checkout)
    assert found.returncode == 100
    assert 'field "3" with name "label" on message "SpawnSessionRequest" was deleted' in found.stdout


def test_renamed_reason_is_found(checkout: Path) -> None:
    change(
        checkout / "protos/spawnmesh/errors/v1/reason.proto",
        "REASON_TOKEN_MISSING = 2",
        "REASON_NO_TOKEN = 2",
    )
    found = breaking(checkout)
    assert found.returncode == 100
    assert 'changed name from "REASON_TOKEN_MISSING" to "REASON_NO_TOKEN"' in found.stdout


def test_new_field_is_accepted(checkout: Path) -> None:
    change(checkout / CONTRACT, FIELD, FIELD + "  // A second name.\n  string nickname = 99;\n")
    assert breaking(checkout).returncode == 0


def test_change_of_an_import_is_accepted(checkout: Path) -> None:
    """A new version of a package changes its files, and no message of the mesh."""
    rules = checkout / "build/contracts/imports/buf/validate/validate.proto"
    change(rules, '  reserved "disabled";\n', "")
    assert breaking(checkout).returncode == 0
