"""The how-to explains every value, and names what is there."""

import re

import yaml

from tests.deploy.rendering import CI, ROOT

HOWTO = (ROOT / "docs" / "howto" / "install-on-kubernetes.md").read_text()
VALUES = yaml.safe_load((ROOT / "deploy" / "helm" / "spawnmesh" / "values.yaml").read_text())


def explained() -> set[str]:
    """The values in the first column; `.tag` goes on from the name before it."""
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
            wanted |= {f"services.<workload>.{key}" for key in content["session"]} | {"services.runner.workspaceSize"}
        elif isinstance(content, dict):
            for key, value in content.items():
                deeper = (section, key) in {("postgresql", "bundled"), ("s3", "bundled"), ("telemetry", "metrics")}
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
