"""Provider keys appear only in requests to their provider.

A wrong configuration is one clear line.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh_model_router.settings import load_config

from tests.support.model_router.fixtures import CANARY, World
from tests.support.model_router.provider import Answering, chat, cut_after, error, openai_error, sse

ECHOES: list[Answering] = [
    openai_error(401, f"Incorrect API key provided: {CANARY}", CANARY, CANARY),
    openai_error(400, f"Unknown parameter: {CANARY}", "invalid_request_error", CANARY),
    openai_error(400, f"image exceeds the limit of {CANARY}", "invalid_request_error", None),
    error(500, f"<html>{CANARY}</html>", retry_after=CANARY),
    sse({"error": {"message": f"overloaded {CANARY}", "type": CANARY, "code": CANARY}}),
    cut_after(*chat(f"no key here but {CANARY[::-1]}")[:2]),
]


@pytest.mark.parametrize("echo", ECHOES)
async def test_Generate__a_provider_that_repeats_the_key_is_not_quoted(
    world: World, echo: Answering, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.provider.on("one", echo)
    router = await world.router(tries_at_last_candidate=1)
    answered = await router.generate(world.ref("one"))
    assert CANARY in world.provider.keys  # It was really sent.
    refused = answered.refused
    told = [str(refused), str(refused.facts), *map(str, answered.events)]
    told += [span.to_json() for span in router.spans.get_finished_spans()]
    await world.stack.aclose()  # It saves cooldowns at its end.
    with psycopg.connect(world.dsn.owner) as connection:
        connection.execute("set local spawnmesh.tenant = '*'")
        told += [str(row) for row in connection.execute("select * from cooldowns").fetchall()]
    captured = capfd.readouterr()
    told += [captured.out, captured.err, caplog.text]
    assert CANARY not in "\n".join(told)


def wrong(world: World, change: Any) -> str:
    """Return the line with which a changed configuration ends the process."""
    config = world.config()
    change(config)
    file = world.folder / "wrong.json"
    file.write_text(json.dumps(config))
    with pytest.raises(SystemExit) as ended:
        load_config(file)
    return str(ended.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(primary="nobody/none"), "primary names no model"),
        (lambda c: c["aliases"].update(slow="nobody/none"), "alias 'slow' names no model"),
        (
            lambda c: c["models"].update({"nobody/x": next(iter(c["models"].values()))}),
            "'nobody/x' is not spelled",
        ),
        (lambda c: c.update(surprise=1), "surprise: Extra inputs are not permitted"),
        (lambda c: next(iter(c["providers"].values())).update(kind="telnet"), "kind: Input should be"),
        (lambda c: next(iter(c["providers"].values())).update(base_url=None), "needs base_url"),
        (lambda c: next(iter(c["providers"].values())).update(base_url="http://me:pw@host"), "without user"),
        (lambda c: next(iter(c["providers"].values())).update(credentials=[CANARY]), "env:NAME or file:"),
        (lambda c: next(iter(c["providers"].values())).update(credentials=[]), "credentials: "),
        (lambda c: next(iter(c["models"].values())).update(max_output="many"), "max_output: "),
        (lambda c: next(iter(c["models"].values())).update(max_output=999_999), "max_output is more than"),
    ],
)
async def test_load_config__a_wrong_one_is_one_line_without_values(
    world: World, change: Any, said: str
) -> None:
    line = wrong(world, change)
    assert said in line
    assert "\n" not in line
    assert CANARY not in line


def test_serve__a_wrong_configuration_ends_the_process_with_one_line(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{")
    environ = {
        **os.environ,
        "MODEL_ROUTER_DATABASE_URL": "host=none",
        "MODEL_ROUTER_CONFIG_FILE": str(file),
        "MODEL_ROUTER_JWKS_FILE": str(keys / "jwks.json"),
    }
    command = [sys.executable, "-m", "spawnmesh_model_router", "serve"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("model-router: config_file is wrong: ")
    assert ended.stderr.count("\n") == 1
