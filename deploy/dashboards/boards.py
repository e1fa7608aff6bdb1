"""All dashboards."""

from collections.abc import Mapping

from deploy.dashboards import models, overview, runs, storage, tenants
from deploy.dashboards.grafana import render

BOARDS = (overview.BOARD, runs.BOARD, models.BOARD, storage.BOARD, tenants.BOARD)


def rendered() -> Mapping[str, str]:
    """Return the JSON of each dashboard by the name of its file."""
    return {f"{board.name}.json": render(board) for board in BOARDS}
