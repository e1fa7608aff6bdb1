"""The dashboards of the chart are those of their sources, and a reader can use them."""

import json
import re
from typing import Any

import promql_parser as promql
import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.dashboards.boards import BOARDS, rendered
from deploy.dashboards.chart import FILES, tenants_reasons, waiting_methods
from deploy.dashboards.grafana import TAG
from deploy.dashboards.parts import Board
from tests.support.deploy.queries import selectors
from tests.support.deploy.registry import series
from tests.support.deploy.rendering import ROOT, of_kind

BOARDS_BY_NAME = {board.name: board for board in BOARDS}


def grafana(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rendered()[f"{board.name}.json"])
    return found


def test_committed_files_are_up_to_date() -> None:
    committed = {file.name: file.read_text() for file in FILES.glob("*.json")}
    assert committed == rendered(), "run: make dashboards"
    assert committed.keys() == of_kind("ConfigMap", "production")["dashboards"]["data"].keys()


@pytest.mark.parametrize("board", BOARDS, ids=lambda one: str(one.name))
def test_dashboard_has_rows_that_ask_a_question_and_panels_that_say_how_to_read_them(board: Board) -> None:
    made = grafana(board)
    titles = [panel["title"] for panel in made["panels"] if panel["type"] == "row"]
    assert titles == [row.question for row in board.rows]
    assert all(title.endswith("?") for title in titles)
    for row in board.rows:
        assert 2 <= len(row.panels) <= 8
        assert sum(panel.width for panel in row.panels) % 24 == 0
        for panel in row.panels:
            assert panel.description.endswith(".")
            assert panel.queries
    ids = [panel["id"] for panel in made["panels"]]
    assert len(ids) == len(set(ids))
    assert made["uid"] == board.name
    assert made["tags"] == [TAG]


@pytest.mark.parametrize("board", BOARDS, ids=lambda one: str(one.name))
def test_runbooks_that_panels_name_exist(board: Board) -> None:
    for row in board.rows:
        for panel in row.panels:
            for page in re.findall(r"[a-z-]+\.md", panel.description):
                found = [ROOT / "docs" / folder / page for folder in ("runbooks", "howto")]
                assert any(file.is_file() for file in found), page


@pytest.mark.parametrize("board", BOARDS, ids=lambda one: str(one.name))
def test_variables_are_labels_of_their_series_and_are_used(board: Board) -> None:
    queries = " ".join(query.expression for row in board.rows for one in row.panels for query in one.queries)
    for variable in board.variables:
        added = {"component"}
        assert variable.of_label in set(series()[variable.series].labels) | added
        assert f'=~"${variable.name}"' in queries
    used = set(re.findall(r"\$(\w+)", queries)) - {"__rate_interval", "__range"}
    assert used == {"namespace", *(variable.name for variable in board.variables)}


def test_every_board_draws_traces_beside_latencies() -> None:
    """Exemplars are kept for histograms alone."""
    drawn = [
        query.expression
        for board in BOARDS
        for row in board.rows
        for panel in row.panels
        for query in panel.queries
        if query.exemplars
    ]
    assert len(drawn) >= 6
    for expression in drawn:
        for selector in selectors(promql.parse(expression.replace("$__rate_interval", "5m"))):
            assert selector.name.endswith("_bucket")
            assert series()[selector.name].kind == "histogram"


@pytest.mark.parametrize("board", BOARDS, ids=lambda one: str(one.name))
def test_grafanas_own_model_reads_the_file(board: Board) -> None:
    read = Dashboard.from_json(grafana(board))
    assert read.uid == board.name
    drawn = sum(len(row.panels) for row in board.rows)
    assert len(read.panels or []) == len(board.rows) + drawn
    variables = read.templating.list_val or []
    assert [one.name for one in variables][:2] == ["datasource", "namespace"]
    assert len(variables) == 2 + len(board.variables)


def test_what_the_chart_states_is_repeated() -> None:
    overview = json.dumps(grafana(BOARDS_BY_NAME["spawnmesh-overview"]))
    assert json.dumps(tenants_reasons())[1:-1] in overview
    assert "MODEL_REFUSED" in tenants_reasons()
    assert json.dumps(waiting_methods())[1:-1] in overview
    assert "WatchSession" in waiting_methods()


def test_pages_name_boards_and_panels_that_exist() -> None:
    """A title of a panel is in quotes, in the paragraph that names its board."""
    titles = {board.title: {panel.title for row in board.rows for panel in row.panels} for board in BOARDS}
    named = 0
    for file in (*(ROOT / "docs").glob("runbooks/*.md"), *(ROOT / "docs").glob("architecture/*.md")):
        text = re.sub(r"\s+", " ", file.read_text())
        for title, board in re.findall(r'((?:"[^"]+"[^"]{0,40})+) on the board "(Spawnmesh: [^"]+)"', text):
            assert board in titles, file.name
            quoted = set(re.findall(r'"([^"]+)"', title))
            wanted = {one for one in quoted if not one.startswith("Spawnmesh: ")}
            assert wanted <= titles[board], file.name
            named += len(wanted)
        for board, title in re.findall(r'on the board "(Spawnmesh: [^"]+)" at "([^"]+)"', text):
            assert title in titles[board], file.name
            named += 1
        assert " on the dashboard" not in text, file.name
    assert named >= 10


def test_page_on_telemetry_has_every_board() -> None:
    page = (ROOT / "docs/howto/telemetry.md").read_text()
    for board in BOARDS:
        assert f"| {board.title} |" in page
