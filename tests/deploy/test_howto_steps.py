"""The commands of the guide for Kubernetes, typed one after the other.

Docker, kubectl and Helm are stand-ins: they write down what they are asked. Helm renders the chart
with the values that it is given. `spawnmesh` makes keys and tokens, and parses what needs a mesh.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.deploy.rendering import ROOT
from tests.support.docs.code_blocks import typed

STEPS = typed("docs/howto/install-on-kubernetes.md")
(VALUES,) = typed("docs/howto/install-on-kubernetes.md", "yaml")
STAND_INS = {
    "make": 'echo "make $@" >> told',
    "docker": """
[ "$1" != inspect ] || echo "registry.example.com/any@sha256:$(printf %064d 7)"
echo "docker $@" >> told
""",
    "kubectl": """
echo "kubectl $@" >> told
case "$*" in *go-template*) echo a certificate;; esac
""",
    "openssl": "echo 0123abcd",
    "sleep": "",
    "helm": """
echo "helm $@" >> told
case "$1" in install|upgrade) [ "$2 $3" = "mesh deploy/helm/spawnmesh" ];; test) exit 0;; *) exit 2;; esac
shift 3
values=
while [ $# -gt 0 ]; do
  case "$1" in
    --values) values="$values $2"; shift 2;;
    --namespace|--timeout) shift 2;;
    --wait) shift;;
    *) echo "an option of no command: $1" >&2; exit 2;;
  esac
done
"$PYTHON" "$ROOT/deploy/helm/render.py" $values >> rendered
""",
    "spawnmesh": """
echo "spawnmesh $@" >> told
case "$*" in keys*|*token*) exec "$REAL/spawnmesh" "$@";; *) exec "$REAL/spawnmesh" "$@" --help > help;; esac
""",
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Type all commands in a folder, and return it."""
    folder = tmp_path_factory.mktemp("operator")
    commands = folder / ".venv" / "bin"  # The page puts it on the PATH.
    commands.mkdir(parents=True)
    for name, script in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/sh\nset -e\n{script}")
        (commands / name).chmod(0o755)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (folder / "values.yaml").write_text(VALUES)
    (folder / "ca.crt").write_text("an authority")
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(folder),
        "ROOT": str(ROOT),
        "REAL": str(Path(sys.executable).parent),
        "PYTHON": sys.executable,
        "OPENAI_API_KEY": "sk-1",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(STEPS)],
        cwd=folder, env=environment, input="postgresql://admin:hush@db.example.com/postgres\n",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_every_step_works_as_it_is_typed(followed: Path) -> None:
    told = (followed / "told").read_text()
    for needed in ("make setup", "kubectl create namespace mesh", "helm install mesh", "helm upgrade mesh"):
        assert needed in told
    made = set(re.findall(r"create secret generic (\S+)", told))
    assert made == {
        "spawnmesh-tokens",
        "postgresql-ca",
        "spawnmesh-postgresql",
        "spawnmesh-s3",
        "spawnmesh-providers",
        "spawnmesh-test-token",
    }
    assert re.search(r"--from-literal=token=eyJ\S+", told), "the token of the test is signed"
    assert "--from-literal=admin-url=postgresql://admin:hush@" in told
    assert (followed / "ca.crt").read_text() == "a certificate\n"


def test_installation_trial_and_upgrade_render(followed: Path) -> None:
    rendered = [one for one in yaml.safe_load_all((followed / "rendered").read_text()) if one]
    sessions = [
        one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("Deployment", "session")
    ]
    assert len(sessions) == 3
