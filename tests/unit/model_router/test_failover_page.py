"""The page about failover agrees with the code."""

import re
from pathlib import Path

from spawnmesh_model_router.domain.classify import STATUS_RULES
from spawnmesh_model_router.domain.cooldown import SCOPES
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.signals import SIGNALS

PAGE = (Path(__file__).parents[3] / "docs" / "architecture" / "failover.md").read_text(encoding="utf-8")


def rows_of(header: str) -> list[list[str]]:
    """Return the cells of each row of the table that begins with this header."""
    table = PAGE.split(header, 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_topics_are_in_their_order_of_precedence() -> None:
    named = [cell for row in rows_of("| topic |") for cell in row[0].split(", ")]
    in_code = list(dict.fromkeys(signal.topic.name for signal in SIGNALS if not signal.provider))
    general = [name for name in named if name != "VENDOR"]
    # The vendors' own rows are one line of the page, and BILLING among them is no place of its own.
    del general[general.index("BILLING")]
    assert general == in_code


def test_every_status_rule_is_on_the_page() -> None:
    told = {
        int(status): row[1] for row in rows_of("| status |") for status in re.findall(r"\b[45]\d\d\b", row[0])
    }
    for status, rule in STATUS_RULES.items():
        assert told[status].startswith(rule.reason.value), status


def test_every_reason_has_its_cooldown_scope() -> None:
    told = {name: row[2] for row in rows_of("| reason | the same") for name in row[0].split(", ")}
    assert set(told) == set(FailoverReason)
    for reason in FailoverReason:
        scope = SCOPES.get(reason)
        assert told[reason].startswith(scope.value.lower() if scope else "nothing"), reason
