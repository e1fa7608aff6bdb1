"""Render the chart as `helm template` does, with the Helm library.

Usage: `python deploy/helm/render.py [--lint | --notes] [VALUES…]`. It prints the objects in the
order of their files, hooks included. If Helm refuses, it prints Helm's message and exits with code
1. `--lint` is `helm lint --strict`, `--notes` prints the notes of an installation.
"""

import argparse
import sys
from pathlib import Path

import helm_python as helm

CHART = Path(__file__).parent / "spawnmesh"


def render(values: dict[str, object], *, release: str = "mesh", namespace: str = "mesh") -> dict[str, str]:
    """Return each template's output by its file. Raises helm.HelmError for values that the schema
    or a template refuses.
    """
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(values))
        manifests = chart.render(values, name=release, namespace=namespace, is_install=True)
    return {name: text for name, text in sorted(manifests.items()) if text.strip()}


def complaints(values: dict[str, object]) -> list[str]:
    """Return the messages of `helm lint --strict` for the chart with these values."""
    report = helm.lint(CHART, values, strict=True, namespace="mesh")
    return [
        f"{message['path']}: {message['error']}" for message in report["messages"] if message["severity"] >= 2
    ]


def merged(files: list[Path]) -> dict[str, object]:
    """Return the values of several files, later ones over earlier ones, merged as Helm does."""
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
    """Print what the arguments ask for."""
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
