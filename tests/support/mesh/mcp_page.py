"""The code on the page about MCP servers, and a configuration of a runner that is made from it."""

import json
import sys
from pathlib import Path

from tests.support.docs.code_blocks import typed
from tests.support.runner.mcp_fixtures import SERVER as SLOW_PROGRAM
from tests.support.runner.mcp_fixtures import stdio

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "mcp.md").read_text()
SERVER, PROGRAM = typed("docs/howto/mcp.md", "python")
CONFIG, _ = typed("docs/howto/mcp.md", "json")
SLOW_SERVER = "slow_server.py"
"""The program of the slow server, beside the one on the page. Its processes have the name in their
command line.
"""


def configure(home: Path) -> Path:
    """Write the server on the page, and a configuration with it and a slow server; return its path."""
    programs = home / "programs"
    programs.mkdir()
    (programs / "weather.py").write_text(SERVER)
    (programs / SLOW_SERVER).write_text(SLOW_PROGRAM.read_text())
    config_text = CONFIG.replace("/venv/bin/python", sys.executable).replace("/srv/mcp", str(programs))
    assert str(programs / "weather.py") in config_text
    config = json.loads(config_text.replace("/venv", sys.prefix))
    config["servers"]["weather"]["paths"].append(sys.base_prefix)
    config["servers"]["slow"] = stdio(program=programs / SLOW_SERVER, tenants=["*"], call_timeout_seconds=600)
    written = home / "mcp.json"
    written.write_text(json.dumps(config))
    return written
