"""Write the OpenAPI document: `python -m spawnmesh_gateway.openapi IMAGE FILE`.

The image is a FileDescriptorSet with the comments of the contracts, as `make contracts` writes it.
"""

import json
import sys
from pathlib import Path

from spawnmesh_gateway.openapi.comments import comments_of
from spawnmesh_gateway.openapi.document import openapi


def main(image: str, file: str) -> None:
    Path(file).write_text(json.dumps(openapi(comments_of(Path(image))), indent=1) + "\n")
    print(f"{file}: OpenAPI document written")


if __name__ == "__main__":
    main(*sys.argv[1:])
