"""Load a hook of the documentation site, which no package has."""

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.support.sources import ROOT


def hook(name: str) -> ModuleType:
    """Return a new module of `docs/hooks`."""
    spec = spec_from_file_location(name, ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
