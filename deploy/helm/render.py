"""Renders the chart as `helm template` would, with the Helm library: `python deploy/helm/render.py [--lint | --notes] [VALUES…]`.

Prints the objects in the order of their files, hooks included. Exit code 1 and Helm's own words where it refuses. `--lint` is
`helm lint --strict`, `--notes` what an installation tells.
"""

import argparse
import sys
from pathlib import Path

import helm_python as helm

CHART = Path(__file__).parent / "spawnmesh"


def render(values: dict[str, object], *, release: str = "mesh", namespace: str = "mesh") -> dict[str, str]:
    """Each template's output by its file. Raises helm.HelmError for values that the schema or a template refuses."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(values))
        manifests = chart.render(values, name=release, namespace=namespace, is_install=True)
    return {name: text for name, text in sorted(manifests.items()) if text.strip()}


def complaints(values: dict[str, object]) -> list[str]:
    """What `helm lint --strict` has to say against the chart with these values."""
    report = helm.lint(CHART, values, strict=True, namespace="mesh")
    return [f"{message['path']}: {message['error']}" for message in report["messages"] if message["severity"] >= 2]


def merged(files: list[Path]) -> dict[str, object]:
    """The values of several files, later ones over earlier ones, as Helm merges them."""
    values: dict[str, object] = {}
    for file in files:
        _merge(values, helm.values_from_yaml(file.read_text()))
    return values


def _merge(into: dict[str, object], over: dict[str, object]) -> None:
    for key, value in over.items():
        below = into.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        else:
            into[key] = value


def main() -> None:
    """Prints what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("values", nargs="*", type=Path)
    parser.add_argument("--lint", action="store_true")
    parser.add_argument("--notes", action="store_true")
    parser.add_argument("--release", default="mesh")
    parser.add_argument("--namespace", default="mesh")
    arguments = parser.parse_args()
    values = merged(arguments.values)
    try:
        if arguments.lint:
            sys.exit("\n".join(complaints(values)) or None)
        for name, text in render(values, release=arguments.release, namespace=arguments.namespace).items():
            if name.endswith("NOTES.txt") == arguments.notes:
                print(
                    text.strip()
                    if arguments.notes
                    else f"---\n# Source: {name}\n{text.strip().removeprefix('---').strip()}"
                )
    except helm.HelmError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
