"""The how-to explains every value, and all files and values that it names exist."""

import re
import shlex
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


def values_of(install: str, tmp_path: Path) -> list[str]:
    """Return the values files of a `helm install`.

    values.yaml is the file that the page tells the reader to write. Each --set becomes one more
    file.
    """
    words = shlex.split(install)
    files = []
    for option, value in pairwise(words):
        if option == "--values" and value == "values.yaml":
            file = tmp_path / value
            file.write_text("\n".join(blocks("yaml")))
            files.append(str(file))
        elif option == "--values":
            files.append(str(ROOT / value))
        elif option == "--set":
            path, _, content = value.partition("=")
            nested: object = content
            for name in reversed(path.split(".")):
                nested = {name: nested}
            file = tmp_path / f"{path}.yaml"
            file.write_text(yaml.safe_dump(nested))
            files.append(str(file))
    return files


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
    (tmp_path / "values.yaml").write_text(block)
    done = helm(str(tmp_path / "values.yaml"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("install", INSTALLS)
def test_installation_finds_the_images_that_were_pushed_and_the_secrets_that_were_made(
    tmp_path: Path, install: str
) -> None:
    (pushed,) = re.findall(r"docker push (\S+)/\$service:(\S+)", HOWTO)
    made = set(re.findall(r"create secret generic (\S+)", HOWTO))
    values = values_of(install, tmp_path)
    of_ours, own = 0, {one["metadata"]["name"] for one in objects(*values) if one["kind"] == "Secret"}
    for name, pod in pods(*values):
        assert secrets_of(pod) - own <= made, name
        for container in containers(pod):
            repository, _, tag = container["image"].rpartition(":")
            if "args" in container and container["args"][0].startswith("spawnmesh"):
                of_ours += 1
                assert (repository.rpartition("/")[0], tag) == pushed, name
    assert of_ours >= 16


def test_both_ways_to_install_are_on_the_page() -> None:
    assert [("trial.yaml" in install) for install in INSTALLS] == [False, True]


def test_trial_makes_every_secret_that_it_does_not_bring() -> None:
    steps_1_and_2, trial = HOWTO.partition("## 3.")[0], HOWTO.partition("## A trial")[2].partition("\n## ")[0]
    made = set(re.findall(r"create secret generic (\S+)", steps_1_and_2 + trial))
    own = {one["metadata"]["name"] for one in objects("trial") if one["kind"] == "Secret"}
    assert {secret for _, pod in pods("trial") for secret in secrets_of(pod)} - own <= made


def test_command_is_there_before_it_is_used() -> None:
    assert HOWTO.index("make setup") < HOWTO.index("\nspawnmesh ")
