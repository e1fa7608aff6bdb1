"""The areas of the benchmarks are the modules that measure something."""

import importlib
import inspect

import pytest

from tests.bench.__main__ import areas


@pytest.mark.parametrize("name", areas())
def test_area_has_a_function_that_measures_it(name: str) -> None:
    assert inspect.iscoroutinefunction(importlib.import_module(f"tests.bench.{name}").run)
