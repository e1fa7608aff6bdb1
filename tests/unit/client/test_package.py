"""The names that the package exports."""

import pytest
import spawnmesh_client


def test_what_the_package_exports_is_there_and_nothing_else() -> None:
    for name in spawnmesh_client.__all__:
        assert getattr(getattr(spawnmesh_client, name), "__name__", "LiveEvent") == name  # It is a union.
    with pytest.raises(AttributeError, match="no attribute 'disconnect'"):
        _ = spawnmesh_client.disconnect
