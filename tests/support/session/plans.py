"""The cost of statements by the plans that the planner makes from old statistics."""

import re
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from tests.support.session.grown import Grown
from tests.support.session.statements import SQL

COUNTED = {
    "never": (0, 0, ""),
    "tenants of a session": (400, 1, ""),
    "one tenant": (1, 1000, ""),
    "none deleted": (20, 10, "jobs"),
    "none queued": (20, 10, "run_queue"),
}

REGIMES = ("never", "tenants of a session", "one tenant")


def blocks_touched(grown: Grown, scope: str, name: str, values: dict[str, Any], mode: str) -> int:
    """By the second of two executions that are rolled back, planned for these values or for any."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", SQL[name])))
    body = SQL[name]
    for number, each in enumerate(names, 1):
        body = body.replace(f"%({each})s", f"${number}")
    arguments = sql.SQL(", ").join(sql.Literal(values[each]) for each in names)
    execute = sql.SQL("execute asked ({})").format(arguments) if names else sql.SQL("execute asked")
    with psycopg.connect(grown.app_dsn, row_factory=dict_row) as link:
        link.execute(f"prepare asked as {body}".encode())
        link.commit()
        for _ in range(2):
            link.execute("select set_config('spawnmesh.tenant', %s, true)", (scope,))
            link.execute("select set_config('plan_cache_mode', %s, true)", (mode,))
            row = link.execute(sql.SQL("explain (analyze, buffers, format json) ") + execute).fetchone()
            link.rollback()
    assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
