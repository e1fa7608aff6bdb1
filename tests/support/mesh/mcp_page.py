"""What the page about MCP servers says, and a runner's configuration that is made of it."""

import json
import re
import sys
from pathlib import Path

from tests.support.runner.mcp_fixtures import stdio

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "mcp.md").read_text()
SERVER, PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CONFIG = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
NOTES = "notes"
"""What the slow server writes into: it is beside the page's own, and says what it does."""


def configure(home: Path) -> Path:
    """Writes the server on the page and a configuration with it and a slow one into the folder; gives the configuration."""
    (home / "weather.py").write_text(SERVER)
    told = CONFIG.replace("/venv/bin/python", sys.executable).replace("/srv/mcp", str(home))
    assert str(home / "weather.py") in told
    config = json.loads(told)
    config["servers"]["slow"] = stdio(env={"NOTES": str(home / NOTES)}, call_timeout_seconds=600)
    written = home / "mcp.json"
    written.write_text(json.dumps(config))
    return written
