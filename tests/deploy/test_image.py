"""The image: its Dockerfile is linted, and its contents are installed here and started."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_postgres.roles import DatabaseUrls, prepare_database

from tests.support.deploy.environment import SERVING, started, until
from tests.support.deploy.rendering import ROOT, VALUE_SETS, containers, pods

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
INSTALL = DOCKER / "install.py"


def closure(name: str) -> set[str]:
    """Return the packages of this repository that the image of a deployable contains."""
    spec = importlib.util.spec_from_file_location("install", INSTALL)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {folder.name for folder in module.closure(name)}


def test_linter_finds_nothing() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [linter, "--failure-threshold", "style", DOCKERFILE], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_as_the_account_that_the_chart_says() -> None:
    text = DOCKERFILE.read_text()
    user, group = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)[-1]
    for name, pod in pods("minimal"):
        assert pod["securityContext"]["runAsUser"] == int(user), name
        assert pod["securityContext"]["runAsGroup"] == int(group), name


def test_stages_start_from_one_image_by_a_digest_that_the_build_must_be_given() -> None:
    text = DOCKERFILE.read_text()
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(images) == 2
    assert len(set(images)) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@\$\{BASE_DIGEST\}", images[0])
    before, _, after = text.partition("\nFROM ")
    assert re.findall(r"^ARG (BASE_DIGEST.*)", before, re.MULTILINE) == ["BASE_DIGEST"], "it has no default"
    name = images[0].partition("@")[0]
    assert f'image.base.name="docker.io/library/{name}"' in after
    assert 'image.base.digest="$BASE_DIGEST"' in after


@pytest.mark.parametrize("values", VALUE_SETS)
def test_every_image_of_the_chart_is_one_that_can_be_built(values: str) -> None:
    ours = {
        re.split("[@:]", container["image"].rpartition("/")[2])[0]
        for _, pod in pods(values)
        for container in containers(pod)
        if "args" in container and str(container["args"][0]).startswith("spawnmesh_")
    }
    assert ours == {"session", "attachment-blob", "transcript", "model-router", "hook", "runner", "command"}
    for name in ours:
        package = f"spawnmesh_{name.replace('-', '_')}"
        (main,) = ROOT.glob(f"*/{name}/{package}/__main__.py")
        assert main.exists()


def test_image_has_its_own_dependencies_and_no_others() -> None:
    assert closure("session") == {"session", "core", "protos", "calls", "runtime", "postgres"}
    assert closure("client") == {"client", "core", "protos", "calls"}
    assert "postgres" not in closure("runner")
    services = {folder.name for folder in (ROOT / "services").iterdir() if folder.is_dir()}
    for name in services:
        assert closure(name) & services == {name}
        assert "devstack" not in closure(name)


def test_context_has_all_that_is_copied() -> None:
    admitted = {
        line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = set(re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    assert copied == admitted
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.timeout(600)
async def test_installed_closure_migrates_and_serves(tmp_path: Path, postgres: Postgres, keys: Path) -> None:
    environment = tmp_path / "venv"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, INSTALL, "transcript", environment], capture_output=True, text=True,
        env={**os.environ, "PIP_NO_COMPILE": "1"},  # Most of the code is never imported.
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    installed = {path.name for path in (environment / "lib").glob("python3*/site-packages/*")}
    assert "spawnmesh_transcript" in installed
    strange = {
        "minio",
        "openai",
        "anthropic",
        "pytest",
        "rich",
        "typer",
        "aiohttp",
        "spawnmesh_session",
        "pip",
    }
    assert installed & strange == set()

    database = f"image_{uuid4().hex[:12]}"
    app, owner = (
        make_conninfo(postgres.superuser_dsn, user=role, dbname=database)
        for role in ("transcript", "transcript_owner")
    )  # fmt: skip
    await asyncio.to_thread(
        prepare_database, postgres.superuser_dsn, {"transcript": DatabaseUrls(app, owner)}
    )
    port, health_port = free_ports(2)
    env = {
        "TRANSCRIPT_DATABASE_URL": app,
        "TRANSCRIPT_DATABASE_OWNER_URL": owner,
        "TRANSCRIPT_JWKS_FILE": str(keys / "jwks.json"),
        "TRANSCRIPT_SIGNING_KEY_FILE": str(keys / "transcript.pem"),
        "TRANSCRIPT_LISTEN": f"127.0.0.1:{port}",
        "TRANSCRIPT_HEALTH_LISTEN": f"127.0.0.1:{health_port}",
    }
    python = environment / "bin" / "python"
    migrating = await asyncio.create_subprocess_exec(
        python, "-m", "spawnmesh_transcript", "migrate", env=env, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await migrating.communicate()
    assert migrating.returncode == 0
    assert told.startswith(b"transcript: 0001_")
    container = {"args": ["spawnmesh_transcript", "serve"]}
    async with started(container, env, python=python) as process:
        await until(health_port, SERVING, process)
        await until(port, SERVING, process, "spawnmesh.transcript.v1.TranscriptService")
