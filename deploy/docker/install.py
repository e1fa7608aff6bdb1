"""Install one deployable with its dependencies into a new virtual environment.

Usage: `install.py NAME DIRECTORY`. The image is built with it, and the tests run it. Each package
from an index, also what builds our own, has a version and a hash of constraints.txt.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OURS = re.compile(r"spawnmesh-([a-z-]+)")
_PIN = re.compile(r"^([a-z0-9-]+)==.*?(?=^[a-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
# A source distribution would be built before its hash is compared, and a build runs its code.
_WHEELS = ("--only-binary", ":all:")


def folder_of(name: str) -> Path:
    """Return the folder of a part of the repository. An unknown name ends the process with
    one line.
    """
    for kind in ("services", "libs"):
        if (ROOT / kind / name / "pyproject.toml").exists():
            return ROOT / kind / name
    raise SystemExit(f"there is no service and no library called {name!r}")


def dependencies_of(folder: Path) -> list[str]:
    """Return the dependencies that the part of the repository declares."""
    declared: list[str] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    return declared


def closure(name: str) -> list[Path]:
    """Return the folders of the part and of all parts of this repository on which it
    depends, sorted.
    """
    found: set[Path] = set()
    waiting = [name]
    while waiting:
        folder = folder_of(waiting.pop())
        if folder not in found:
            found.add(folder)
            ours = (_OURS.match(dependency) for dependency in dependencies_of(folder))
            waiting += [match.group(1) for match in ours if match]
    return sorted(found)


def pins(file: str = "constraints.txt") -> dict[str, str]:
    """Return version and hashes of each package in the file, as pip reads them."""
    return {match[1]: match[0] for match in _PIN.finditer((ROOT / file).read_text())}


def pins_of(requirements: list[str]) -> str:
    """Return the pins of these packages and of all that they depend on here.

    A package without a pin ends the process with one line.
    """
    pinned = pins()
    with tempfile.TemporaryDirectory() as made:
        versions, report = Path(made) / "versions.txt", Path(made) / "report.json"
        versions.write_text("".join(f"{pin.split()[0]}\n" for pin in pinned.values()))
        resolve = ["install", "--dry-run", "--ignore-installed", *_WHEELS, "--report", str(report)]
        _pip(*resolve, "-c", str(versions), *requirements)
        found = json.loads(report.read_text())["install"]
    names = sorted(re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower() for one in found)
    if missing := [name for name in names if name not in pinned]:
        raise SystemExit(f"constraints.txt has no pin of {', '.join(missing)}")
    return "".join(pinned[name] for name in names)


def install_verified(requirements: list[str], directory: Path) -> None:
    """Install packages of an index with their dependencies, of which pip compares each hash."""
    venv.create(directory, with_pip=False, clear=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins_of(requirements))
        file.flush()
        verified = ["install", "--no-deps", "--require-hashes", *_WHEELS, "-r", file.name]
        _pip("--python", str(directory / "bin" / "python"), *verified)


def install(name: str, directory: Path) -> None:
    """Create the environment."""
    folders = closure(name)
    declared = {dependency for folder in folders for dependency in dependencies_of(folder)}
    install_verified(sorted(one for one in declared if not _OURS.match(one)), directory)
    with tempfile.TemporaryDirectory() as made:
        builder, wheels = Path(made) / "builder", Path(made) / "wheels"
        install_verified(["hatchling"], builder)
        build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), *map(str, folders)]
        _pip("--python", str(builder / "bin" / "python"), *build)
        ours = ["install", "--no-deps", "--no-index", *map(str, sorted(wheels.glob("*.whl")))]
        _pip("--python", str(directory / "bin" / "python"), *ours)


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, *arguments], check=True)  # noqa: S603


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: install.py NAME DIRECTORY")
    install(sys.argv[1], Path(sys.argv[2]))
