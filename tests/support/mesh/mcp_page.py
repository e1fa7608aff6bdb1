"""The code on the page about MCP servers, and a configuration of a runner that is made from it."""

import json
import re
import sys
from pathlib import Path

from tests.support.runner.mcp_fixtures import stdio

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "mcp.md").read_text()
SERVER, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CONFIG = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
NOTES = "notes"
"""The file into which the slow server, beside the one on the page, writes its progress."""


def configure(home: Path) -> Path:
    """Write the server on the page, and a configuration with it and a slow server; return its path."""
    (home / "weather.py").write_text(SERVER)
    config_text = CONFIG.replace("/venv/bin/python", sys.executable).replace("/srv/mcp", str(home))
    assert str(home / "weather.py") in config_text
    config = json.loads(config_text)
    config["servers"]["slow"] = stdio(env={"NOTES": str(home / NOTES)}, call_timeout_seconds=600)
    written = home / "mcp.json"
    written.write_text(json.dumps(config))
    return written
