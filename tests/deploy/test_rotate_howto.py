"""The commands of the how-to rotate a key, on real files and with a directory for the secret."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_runtime.key_files import make_keys

from tests.support.docs.code_blocks import typed

STEPS = [re.sub(r"(?m)^   ", "", block) for block in typed("docs/howto/rotate-signing-keys.md")]

KUBECTL = """#!/bin/sh
echo "$@" >> "$TOLD"
case "$*" in
  *"create secret"*) echo made ;;
  replace*) read -r made && cp -r keys "$PUBLISHED/$(ls "$PUBLISHED" | wc -l)" ;;
  *logs*) echo jwks_updated ;;
esac
"""


@pytest.fixture
def followed(tmp_path: Path) -> Path:
    """Return the directory with the content of the secret after each change, by the number of the
    change.
    """
    commands, published = tmp_path / "bin", tmp_path / "published"
    commands.mkdir()
    published.mkdir()
    for name, script in (("kubectl", KUBECTL), ("sleep", "#!/bin/sh\n")):
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    make_keys(tmp_path / "keys")
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "HOME": str(tmp_path),
        "TOLD": str(tmp_path / "told"),
        "PUBLISHED": str(published),
    }
    script = "set -e\n" + "\n".join(STEPS)
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return published


def key_ids(secret: Path) -> list[str]:
    members: list[dict[str, Any]] = json.loads((secret / "jwks.json").read_text())["keys"]
    return [member["kid"] for member in members if member["iss"] == "session"]


def test_nobody_signs_with_a_key_that_was_not_published_before_nor_after_it_was_dropped(
    followed: Path,
) -> None:
    first, second, third = (followed / str(number) for number in range(3))
    signing = [(secret / "session.pem").read_text().split()[1] for secret in (first, second, third)]
    old, new = signing[0], signing[1]
    assert old != new == signing[2]
    assert [key_ids(secret) for secret in (first, second, third)] == [[new, old], [new, old], [new]]
    told = (followed.parent / "told").read_text()
    assert "--from-file=keys/session.pem" in told
    assert "client.pem" not in told, "the key of operators stays outside of the cluster"
    assert told.index("rollout restart") > told.index("logs")
