"""Dashboards as Grafana reads them, made with Grafana's own SDK."""

from collections.abc import Iterator

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from deploy.dashboards.parts import Board, Limits, Panel, Row, Shape, Variable

TAG = "spawnmesh"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = {Shape.LINES: 8, Shape.STACKED: 8, Shape.NUMBER: 4}
_STACKED_OPACITY = 25
_ALL = models.VariableOption(text="All", value="$__all")
_NAMESPACES = 'label_values(up{job="metrics"}, namespace)'


def render(board: Board) -> str:
    """Return the JSON of the dashboard."""
    links = dashboard.DashboardLink("Spawnmesh").type(models.DashboardLinkType.DASHBOARDS)
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.name)
        .description(board.description)
        .tags([TAG])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(links.tags([TAG]).keep_time(True).include_vars(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("namespace", "Namespace", _NAMESPACES))
    )
    for variable in board.variables:
        built = built.with_variable(_choice(variable))
    ids = iter(range(1, 1000))
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.question).id(next(ids)))
        for panel in _panels(row, ids):
            built = built.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _panels(row: Row, ids: Iterator[int]) -> Iterator[stat.Panel | timeseries.Panel]:
    for panel in row.panels:
        built = _number(panel) if panel.shape is Shape.NUMBER else _lines(panel)
        built = (
            built.id(next(ids))
            .title(panel.title)
            .description(panel.description)
            .datasource(_SOURCE)
            .unit(panel.unit.value)
            .span(panel.width)
            .height(_HEIGHT[panel.shape])
        )
        for letter, query in zip("ABCDEF", panel.queries, strict=False):
            target = prometheus.Dataquery().ref_id(letter).expr(query.expression).datasource(_SOURCE)
            target = target.legend_format(query.legend).exemplar(query.exemplars)
            # A number of the whole shown time is asked for once, and not for each point of a line.
            is_of_all = panel.shape is Shape.NUMBER and "$__range" in query.expression
            built = built.with_target(target.instant() if is_of_all else target.range())
        yield built


def _lines(panel: Panel) -> timeseries.Panel:
    is_stacked = panel.shape is Shape.STACKED
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
    )
    tooltip = (
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
    built = timeseries.Panel().min(0).legend(legend).tooltip(tooltip)
    if is_stacked:
        stacking = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        built = built.stacking(stacking).fill_opacity(_STACKED_OPACITY)
    return built


def _number(panel: Panel) -> stat.Panel:
    newest = common.ReduceDataOptions().calcs(["lastNotNull"])
    built = stat.Panel().reduce_options(newest).graph_mode(common_models.BigValueGraphMode.AREA)
    return built if panel.limits is None else built.thresholds(_thresholds(panel.limits))


def _thresholds(limits: Limits) -> dashboard.ThresholdsConfig:
    falls = limits.red < limits.yellow
    steps = (
        [(None, "red"), (limits.red, "yellow"), (limits.yellow, "green")]
        if falls
        else [(None, "green"), (limits.yellow, "yellow"), (limits.red, "red")]
    )
    config = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([models.Threshold(value=value, color=color) for value, color in steps])


def _choice(variable: Variable) -> dashboard.QueryVariable:
    query = f'label_values({variable.series}{{namespace="$namespace"}}, {variable.of_label})'
    return _variable(variable.name, variable.label, query).multi(True).include_all(True).current(_ALL)


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
