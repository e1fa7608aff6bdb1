"""The things that the chart states and the dashboards repeat."""

import re
from pathlib import Path

HELM = Path(__file__).resolve().parents[1] / "helm" / "spawnmesh"
FILES = HELM / "files" / "dashboards"


def tenants_reasons() -> str:
    """Return the regular expression of the reasons of tenants, as the alerts have it."""
    text = (HELM / "templates" / "_objectives.tpl").read_text()
    found = re.search(r'define "spawnmesh.tenantsReasons" -}}\n(\S+)\n', text)
    if found is None:
        raise ValueError("the chart has no reasons of tenants")
    return found[1]


def waiting_methods() -> str:
    """Return the regular expression of the RPCs that wait on purpose, as the alerts have it."""
    found = re.search(r'rpc_method!~"([^"]+)"', (HELM / "files" / "alerts.yaml").read_text())
    if found is None:
        raise ValueError("no alert leaves out the RPCs that wait on purpose")
    return found[1]
