"""`python -m tests.support.deploy.dry_install API VALUES…`: print the objects that an installation into
the cluster of this API would make.

`helm install --dry-run=server`: templates may look for objects of the cluster.
"""

import json
import sys
from pathlib import Path

import helm_python as helm

from deploy.helm.render import CHART, merged


def main() -> None:
    """Print the manifest, or Helm's message and exit with code 1."""
    api, *files = sys.argv[1:]
    here = {"name": "here", "cluster": {"server": api}}
    context = {"name": "here", "context": {"cluster": "here", "user": "here", "namespace": "mesh"}}
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [here],
        "contexts": [context],
        "users": [{"name": "here", "user": {}}],
    }
    values = merged([Path(file) for file in files])
    content = json.dumps(access)
    try:
        with helm.Config(kubeconfig_content=content, namespace="mesh", storage_driver="memory") as config:
            print(config.install(CHART, "mesh", values, namespace="mesh", dry_run="server")["manifest"])
    except helm.HelmError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
