"""The how-to for failover: its values are taken by the chart, and its URLs by the services."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict
from spawnmesh_postgres.connection import with_timeouts

from tests.support.deploy.rendering import CI, ROOT, containers, objects, pods
from tests.support.docs.code_blocks import typed

HOWTO = (ROOT / "docs" / "howto" / "postgresql-failover.md").read_text()
VALUES = [block for block in re.findall(r"```yaml\n(.*?)```", HOWTO, re.DOTALL) if "existingSecret" in block]
(URLS,) = typed("docs/howto/postgresql-failover.md")
HOSTS = re.findall(r"^HOSTS=(.*)$", HOWTO, re.MULTILINE)

KUBECTL = """#!/bin/sh
for word in "$@"; do echo "$word" >> "$TOLD"; done
"""


def urls(tmp_path: Path, hosts: str) -> dict[str, str]:
    """Return the URLs that the script of the page puts into the secret, by key."""
    for name, script in (("kubectl", KUBECTL), ("openssl", "#!/bin/sh\necho 0123abcd\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TOLD": str(tmp_path / "told"),
        "HOSTS": hosts,
    }
    subprocess.run(["bash", "-ec", URLS], env=environment, input="hush\n", text=True, check=True)
    literals = re.findall(r"^--from-literal=([\w-]+)=(.*)$", (tmp_path / "told").read_text(), re.MULTILINE)
    return dict(literals)


def rendered(tmp_path: Path, values: str) -> tuple[str, str]:
    """Return the value sets for an installation with the values of the page."""
    (tmp_path / "values.yaml").write_text(values)
    return str(CI / "minimal.yaml"), str(tmp_path / "values.yaml")


def test_page_has_both_tools() -> None:
    assert (len(VALUES), len(HOSTS)) == (2, 2)


@pytest.mark.parametrize("hosts", HOSTS)
def test_urls_lead_to_the_server_that_takes_writes(tmp_path: Path, hosts: str) -> None:
    made = urls(tmp_path, hosts)
    assert len(made) == 11
    for key, url in made.items():
        parts = conninfo_to_dict(url)
        assert f"{parts['host']}".split(",") == [one.partition(":")[0] for one in hosts.split(",")], key
        assert parts["target_session_attrs"] == "read-write", key
        assert parts["dbname"] == ("postgres" if key == "admin-url" else "spawnmesh")


@pytest.mark.parametrize("values", VALUES)
def test_chart_takes_the_values_and_mounts_what_the_urls_name(tmp_path: Path, values: str) -> None:
    made = urls(tmp_path, HOSTS[0])
    mounted = set()
    for name, pod in pods(*rendered(tmp_path, values)):
        for volume in pod["volumes"]:
            for source in volume.get("projected", {}).get("sources", []):
                if source["secret"]["name"] == "spawnmesh-postgresql":
                    assert {item["key"] for item in source["secret"]["items"]} <= set(made), name
        paths = [mount["mountPath"] for one in containers(pod) for mount in one["volumeMounts"]]
        mounted |= set(paths)
    authority = Path(str(conninfo_to_dict(made["session-url"])["sslrootcert"]))
    assert str(authority.parent) in mounted


@pytest.mark.parametrize("values", VALUES)
def test_policies_let_every_service_reach_every_server(tmp_path: Path, values: str) -> None:
    wanted: dict[str, Any] = yaml.safe_load(values)["networkPolicy"]["postgresql"]
    made = rendered(tmp_path, values)
    policies = {one["metadata"]["name"]: one for one in objects(*made) if one["kind"] == "NetworkPolicy"}
    for name in ("session", "session-worker", "transcript", "migrate"):
        egress = policies[name]["spec"]["egress"]
        assert {"ports": [{"port": 5432, "protocol": "TCP"}], "to": wanted["to"]} in egress, name


def test_timeouts_on_the_page_are_those_of_the_connections() -> None:
    made = conninfo_to_dict(with_timeouts("host=db"))
    rows = [line.split("|")[1:3] for line in HOWTO.splitlines() if re.match(r"\| `(?:conn|tcp|keep)", line)]
    told = {
        name: value
        for names, values in rows
        for name, value in zip(re.findall(r"\w+", names), re.findall(r"\d+", values), strict=True)
    }
    assert told == {name: value for name, value in made.items() if name != "host"}
