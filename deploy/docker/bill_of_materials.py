"""Write the bill of materials of all pinned packages, in the JSON format of CycloneDX.

Usage: `bill_of_materials.py FILE`. The packages are those of constraints.txt, each with its version
and the hashes of all files that pip accepts for it.
"""

import re
import sys
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from install import pins
from packageurl import PackageURL


def component_of(name: str, pin: str) -> Component:
    """Return the package of one pin. Its reference is its package URL, which names the version."""
    version = pin.split()[0].partition("==")[2]
    url = PackageURL("pypi", name=name, version=version)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=one) for one in re.findall(r"sha256:(\w+)", pin)]
    return Component(name=name, version=version, bom_ref=str(url), purl=url, hashes=hashes)


def bill() -> Bom:
    """Return the bill of materials of the whole mesh."""
    parts = [component_of(name, pin) for name, pin in pins().items()]
    made = Bom(components=parts)
    made.metadata.component = Component(name="spawnmesh", type=ComponentType.APPLICATION)
    made.register_dependency(made.metadata.component, parts)
    return made


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: bill_of_materials.py FILE")
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(JsonV1Dot6(bill()).output_as_string(indent=2) + "\n")
