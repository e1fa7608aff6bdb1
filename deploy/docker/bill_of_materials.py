"""Write the bill of materials of all pinned packages and images, in the JSON format of CycloneDX.

Usage: `bill_of_materials.py FILE [BASE_DIGEST]`. The packages are those of constraints.txt, of
development, of the tools, of the optional model, of the examples and of the tests in a browser,
each with its version and the hashes of all files that pip accepts for it. Those of the TypeScript
client are the ones that its `package.json` names: it pins their versions, without hashes. The
images are the base image of the Dockerfile, with its digest if one is given, and those that the
chart brings for a trial, by their tags.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from install import ROOT, pins
from packageurl import PackageURL

# The packages of development, of the tools, of the examples and of the tests in a browser are in
# nothing that is delivered.
PIN_FILES = {
    "constraints.txt": ComponentScope.REQUIRED,
    "requirements-dev.txt": ComponentScope.EXCLUDED,
    "requirements-smollm2.txt": ComponentScope.OPTIONAL,
    "requirements-tools.txt": ComponentScope.EXCLUDED,
    "requirements-examples.txt": ComponentScope.EXCLUDED,
    "requirements-browser.txt": ComponentScope.EXCLUDED,
}
NPM_SCOPES = {"dependencies": ComponentScope.REQUIRED, "devDependencies": ComponentScope.EXCLUDED}
_CHART = ROOT / "deploy" / "helm" / "spawnmesh"


def packages() -> Iterator[Component]:
    """Yield the package of each pin once, in the scope of the first file that has it."""
    seen: set[str] = set()
    for file, scope in PIN_FILES.items():
        for name, pin in pins(file).items():
            package = package_of(name, pin, scope)
            if package.bom_ref.value not in seen:
                seen.add(str(package.bom_ref.value))
                yield package


def package_of(name: str, pin: str, scope: ComponentScope) -> Component:
    """Return the package of a pin. Its reference is its package URL, which names the version.

    A pin without a hash ends the process with one line.
    """
    version = pin.split()[0].partition("==")[2]
    url = PackageURL("pypi", name=name, version=version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=one) for one in re.findall(r"sha256:(\w+)", pin)]
    if not hashes:
        raise SystemExit(f"the pin of {name} has no hash")
    return Component(name=name, version=version, bom_ref=str(url), purl=url, hashes=hashes, scope=scope)


def npm_packages() -> Iterator[Component]:
    """Yield the packages of the TypeScript client. Those that only build it are excluded."""
    named = json.loads((ROOT / "clients/typescript/package.json").read_text())
    for key, scope in NPM_SCOPES.items():
        for full_name, version in named[key].items():
            if not re.fullmatch(r"\d+\.\d+\.\d+", version):
                raise SystemExit(f"clients/typescript/package.json has no exact version of {full_name}")
            namespace, _, name = full_name.rpartition("/")
            url = PackageURL("npm", namespace or None, name, version)
            yield Component(
                group=namespace or None, name=name, version=version, bom_ref=str(url), purl=url, scope=scope
            )


def images(base_digest: str) -> Iterator[Component]:
    """Yield the base image, and the images of the servers that the chart brings for a trial."""
    yield base_image(base_digest)
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    trial = yaml.safe_load((_CHART / "ci" / "trial.yaml").read_text())
    for server in ("postgresql", "s3"):
        repository = values[server]["bundled"]["image"]["repository"]
        yield _image(repository, trial[server]["bundled"]["image"]["tag"], "", ComponentScope.OPTIONAL)


def base_image(base_digest: str) -> Component:
    """Return the image that the Dockerfile builds upon."""
    base = re.search(r"^FROM (\S+):(\S+)@", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    if base is None:
        raise SystemExit("the Dockerfile names no base image with a tag and a digest")
    return _image(f"docker.io/library/{base[1]}", base[2], base_digest, ComponentScope.REQUIRED)


def _image(repository: str, tag: str, digest: str, scope: ComponentScope) -> Component:
    _, namespace, name = repository.split("/")
    url = PackageURL("docker", namespace, name, digest or tag)
    named = f"{repository}:{tag}@{digest}" if digest else f"{repository}:{tag}"
    return Component(
        type=ComponentType.CONTAINER,
        name=repository,
        version=digest or tag,
        bom_ref=str(url),
        purl=url,
        scope=scope,
        properties=[Property(name="spawnmesh:image", value=named)],
    )


def bill(base_digest: str = "") -> Bom:
    """Return the bill of materials of the whole mesh."""
    parts = [*packages(), *npm_packages(), *images(base_digest)]
    made = Bom(components=parts)
    made.metadata.component = Component(name="spawnmesh", type=ComponentType.APPLICATION)
    made.register_dependency(made.metadata.component, parts)
    return made


def write(made: Bom, file: Path) -> None:
    """Write the bill. Make the folder of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(JsonV1Dot6(made).output_as_string(indent=2) + "\n")


def digest_in(arguments: list[str]) -> str:
    """Return the digest after the first argument, or an empty text. Others end the process."""
    if len(arguments) not in (1, 2):
        raise SystemExit(f"usage: {Path(sys.argv[0]).name} FILE [BASE_DIGEST]")
    if len(arguments) == 2 and not re.fullmatch(r"sha256:[0-9a-f]{64}", arguments[1]):
        raise SystemExit("BASE_DIGEST is no digest: sha256: and 64 hexadecimal digits")
    return "".join(arguments[1:])


if __name__ == "__main__":
    write(bill(digest_in(sys.argv[1:])), Path(sys.argv[1]))
