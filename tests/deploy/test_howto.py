"""The how-to explains every value, and all files and values that it names exist."""

import os
import re
import shlex
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.support.deploy.rendering import CI, ROOT, Object, containers, helm, objects, pods

HOWTO = (ROOT / "docs" / "howto" / "install-on-kubernetes.md").read_text()
VALUES = yaml.safe_load((ROOT / "deploy" / "helm" / "spawnmesh" / "values.yaml").read_text())


def explained() -> set[str]:
    """Return the values in the first column. A name that begins with `.` continues the name before
    it.
    """
    found = set()
    for line in HOWTO.splitlines():
        if line.startswith("| `"):
            stem = ""
            for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
                whole = stem + name if name.startswith(".") else name
                stem = whole.rpartition(".")[0]
                found.add(whole)
    return found


def test_every_value_is_explained() -> None:
    wanted = set()
    for section, content in VALUES.items():
        if section == "services":
            wanted |= {f"services.<workload>.{key}" for key in content["session"]} | {
                "services.runner.workspaceSize"
            }
        elif isinstance(content, dict):
            for key, value in content.items():
                deeper = (section, key) in {
                    ("postgresql", "bundled"),
                    ("s3", "bundled"),
                    ("telemetry", "metrics"),
                    ("runner", "mcp"),
                }
                wanted |= {f"{section}.{key}.{one}" for one in value} if deeper else {f"{section}.{key}"}
        else:
            wanted.add(section)
    assert explained() == wanted


def test_files_that_are_named_are_there() -> None:
    for path in re.findall(r"(?:deploy|docs)/[\w./-]+\.(?:yaml|md|py)|deploy/docker/Dockerfile", HOWTO):
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((\.\./[^)#]+|[\w-]+\.md)\)", HOWTO):
        assert (ROOT / "docs" / "howto" / link).resolve().exists(), link
    assert (CI / "minimal.yaml").exists()


def blocks(language: str) -> list[str]:
    """Return the content of each code fence of the language."""
    return re.findall(rf"```{language}\n(.*?)```", HOWTO, re.DOTALL)


INSTALLS = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("helm install")]


DOCKER = """#!/bin/sh
[ "$1" != build ] || echo "$@" >> built
[ "$1" != inspect ] || for last in "$@"; do :; done
[ "$1" != inspect ] || echo "${last%:*}@sha256:$(printf %s "${last%:*}" | sha256sum | cut -d ' ' -f 1)"
"""
KUBECTL = """#!/bin/sh
echo "$@" >> told
"""


def follow(step: str, folder: Path) -> None:
    """Run the commands of a step of the page, with a stand-in for a registry and for a cluster."""
    for name, script in (("docker", DOCKER), ("kubectl", KUBECTL)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (commands,) = [block for block in blocks("sh") if step in block]
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", commands], cwd=folder, env={"PATH": path, "HOME": str(folder)}, check=True)


def test_base_image_is_built_upon_by_the_digest_that_images_yaml_names(tmp_path: Path) -> None:
    follow("docker push", tmp_path)
    (image,) = set(re.findall(r"^FROM (\S+)@", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE))
    digest = f"sha256:{sha256(image.partition(':')[0].encode()).hexdigest()}"
    built = (tmp_path / "built").read_text().splitlines()
    assert len(built) == 8
    assert all(f" --build-arg BASE_DIGEST={digest} " in command for command in built)
    assert (tmp_path / "images.yaml").read_text().splitlines()[0] == f"# Base image: {image}@{digest}"


def values_of(install: str, tmp_path: Path) -> list[str]:
    """Return the values files of a `helm install`.

    values.yaml is the file that the page tells the reader to write, and images.yaml the one that
    its first step writes.
    """
    follow("docker push", tmp_path)
    (tmp_path / "values.yaml").write_text("\n".join(blocks("yaml")))
    given = [value for option, value in pairwise(shlex.split(install)) if option == "--values"]
    return [str(ROOT / value if "/" in value else tmp_path / value) for value in given]


def secrets_of(pod: Object) -> set[str]:
    """Return the secrets without which the pod does not start."""
    found = set()
    for volume in pod["volumes"]:
        if "secret" in volume:
            found.add(volume["secret"]["secretName"])
        found |= {source["secret"]["name"] for source in volume.get("projected", {}).get("sources", [])}
    return found


@pytest.mark.parametrize("block", blocks("yaml"))
def test_values_on_the_page_are_ones_that_the_chart_takes(tmp_path: Path, block: str) -> None:
    follow("docker push", tmp_path)
    (tmp_path / "values.yaml").write_text(block)
    done = helm(str(tmp_path / "images.yaml"), str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("install", INSTALLS)
def test_installation_finds_the_images_that_were_pushed_and_the_secrets_that_were_made(
    tmp_path: Path, install: str
) -> None:
    (pushed,) = re.findall(r"docker push (\S+)/\$service:", HOWTO)
    made = set(re.findall(r"create secret generic (\S+)", HOWTO))
    values = values_of(install, tmp_path)
    own = {one["metadata"]["name"] for one in objects(*values) if one["kind"] == "Secret"}
    own |= {one["spec"]["secretName"] for one in objects(*values) if one["kind"] == "Certificate"}
    of_ours = 0
    for name, pod in pods(*values):
        assert secrets_of(pod) - own <= made, name
        for container in containers(pod):
            if "args" in container and container["args"][0].startswith("spawnmesh"):
                of_ours += 1
                repository, _, digest = container["image"].partition("@")
                assert repository.rpartition("/")[0] == pushed, name
                assert digest == f"sha256:{sha256(repository.encode()).hexdigest()}", name
    assert of_ours >= 16


def test_key_of_operators_is_made_and_stays_outside_of_the_cluster(tmp_path: Path) -> None:
    follow("spawnmesh keys", tmp_path)
    (secret,) = [line for line in (tmp_path / "told").read_text().splitlines() if "create secret" in line]
    made = {file.name for file in (tmp_path / "keys").iterdir()}
    assert "client.pem" in made
    assert set(re.findall(r"--from-file=keys/(\S+)", secret)) == made - {"client.pem"}


def test_both_ways_to_install_are_on_the_page() -> None:
    assert [("trial.yaml" in install) for install in INSTALLS] == [False, True]


def test_trial_makes_every_secret_that_it_does_not_bring() -> None:
    steps_1_and_2, trial = HOWTO.partition("## 3.")[0], HOWTO.partition("## A trial")[2].partition("\n## ")[0]
    made = set(re.findall(r"create secret generic (\S+)", steps_1_and_2 + trial))
    own = {one["metadata"]["name"] for one in objects("trial") if one["kind"] == "Secret"}
    assert {secret for _, pod in pods("trial") for secret in secrets_of(pod)} - own <= made


def test_command_is_there_before_it_is_used() -> None:
    assert HOWTO.index("make setup") < HOWTO.index("\nspawnmesh ")
