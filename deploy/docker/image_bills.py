"""Write the bill of materials of each image, in the JSON format of CycloneDX.

Usage: `image_bills.py DIRECTORY [BASE_DIGEST]`. Each file has the packages that `install.py` puts
into the image, with the hashes that it accepts, the parts of this repository, and the base image.
It needs no network: the packages that are installed here say what they depend on.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from bill_of_materials import base_image, digest_in, package_of, write
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from install import closure, dependencies_of, pins
from packageurl import PackageURL
from packaging.requirements import Requirement

IMAGES = ("session", "attachment-blob", "transcript", "model-router", "hook", "runner", "console", "command")


def depended_on(requirements: list[str]) -> set[str]:
    """Return the names of the packages that these requirements install, with all dependencies."""
    found: set[tuple[str, str]] = set()
    waiting = list(map(Requirement, requirements))
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for extra in ("", *requirement.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            needed = map(Requirement, requires(name) or ())
            waiting += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def parts_of(image: str) -> Iterator[Component]:
    """Yield the packages in the image, ours without hashes."""
    folders = closure(image)
    declared = {one for folder in folders for one in dependencies_of(folder)}
    pinned = pins()
    for name in sorted(depended_on([one for one in declared if not one.startswith("spawnmesh-")])):
        yield package_of(name, pinned[name], ComponentScope.REQUIRED)
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        url = PackageURL("pypi", name=project["name"], version=project["version"])
        yield Component(name=project["name"], version=project["version"], bom_ref=str(url), purl=url)


def bill_of(image: str, base_digest: str = "") -> Bom:
    """Return the bill of materials of one image."""
    parts = [base_image(base_digest), *parts_of(image)]
    made = Bom(components=parts)
    made.metadata.component = Component(name=f"spawnmesh-{image}", type=ComponentType.CONTAINER)
    made.register_dependency(made.metadata.component, parts)
    return made


if __name__ == "__main__":
    digest = digest_in(sys.argv[1:])
    for name in IMAGES:
        write(bill_of(name, digest), Path(sys.argv[1]) / f"{name}.cdx.json")
