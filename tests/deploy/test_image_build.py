"""Every image is built from the Dockerfile, step by step, and its process starts there.

Each image takes a minute or two, and they differ in their packages alone: `make images` builds all
of them and prints the sizes, and the tests that take long build three.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deploy.image_builder import ImageBuilder, why_not
from tests.support.deploy.rendering import ROOT

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(1200)]

MODULES = {
    "session": "spawnmesh_session",
    "attachment-blob": "spawnmesh_attachment_blob",
    "transcript": "spawnmesh_transcript",
    "model-router": "spawnmesh_model_router",
    "hook": "spawnmesh_hook",
    "runner": "spawnmesh_runner",
    "console": "spawnmesh_console",
    "command": "spawnmesh_command",
}
BUILT = (
    tuple(MODULES) if os.environ.get("SPAWNMESH_ALL_IMAGES") else ("attachment-blob", "console", "command")
)
_INSTALLED = (
    "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
)
_WRITABLE = "find /venv /usr /etc /opt -writable ! -type l | head"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageBuilder]:
    folder = tmp_path_factory.mktemp("images")
    made = ImageBuilder(folder)
    made.make_base()
    yield made
    shutil.rmtree(folder)  # Gigabytes.


def bill_of(service: str, folder: Path) -> dict[str, str]:
    """Return the packages that the bill of materials of the image has, with their versions."""
    command = [sys.executable, "-W", "error", ROOT / "deploy" / "docker" / "image_bills.py", folder]
    subprocess.run(command, check=True)
    written = json.loads((folder / f"{service}.cdx.json").read_text())
    return {
        one["name"]: one["version"] for one in written["components"] if one["purl"].startswith("pkg:pypi/")
    }


@pytest.mark.parametrize("service", BUILT)
def test_image_is_built_and_starts(
    builder: ImageBuilder, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = builder.build(service)
    configuration = builder.configuration(image)
    assert configuration["User"] == "10001:10001"
    assert configuration["Entrypoint"] == ["python", "-m"]
    assert configuration["Labels"]["org.opencontainers.image.title"] == f"spawnmesh-{service}"
    started = builder.run(image, "python", "-m", MODULES[service], "serve")
    said = started.stdout + started.stderr
    assert "invalid settings" in said or "Usage" in said or "usage" in said, said
    assert "Traceback" not in said
    assert builder.run(image, "sh", "-c", _WRITABLE).stdout == "", "nothing of the image can be changed"
    installed = json.loads(builder.run(image, "/venv/bin/python", "-c", _INSTALLED).stdout)
    normalized = {name.lower().replace("_", "-").replace(".", "-"): each for name, each in installed.items()}
    assert normalized == bill_of(service, tmp_path)
    whole, own = (size / 1024**2 for size in builder.size_bytes(image))
    with capsys.disabled():
        print(f"\nimage {service}: {own:.0f} MiB of its own, {whole:.0f} MiB with a base image of Debian")
