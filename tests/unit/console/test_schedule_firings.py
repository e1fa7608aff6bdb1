"""The history of a schedule as it is rendered, with outcomes that a test would wait for."""

from datetime import UTC, datetime

from spawnmesh_client.schedule_views import FiringOutcome, ScheduleFiring
from spawnmesh_console.clients.schedules import ScheduleHistoryPage
from spawnmesh_console.domain import schedules as words
from spawnmesh_console.domain.plugins import is_session
from spawnmesh_console.web.rendering import open_templates

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.html import Page, read_html

DUE = datetime(2026, 11, 30, 3, tzinfo=UTC)
SESSION = f"ses_{'0' * 26}"


def firing(
    outcome: FiringOutcome, *, session: str = "", reason: str = "", message: str = ""
) -> ScheduleFiring:
    return ScheduleFiring("fir_1", DUE, DUE, outcome, session, reason, message, is_manual=False)


def rendered(*firings: ScheduleFiring, outcome: str = "", token: str = "") -> str:
    return (
        open_templates()
        .get_template("schedule_firings.html")
        .render(
            name="nightly",
            page=ScheduleHistoryPage([*firings], token),
            outcome=outcome,
            history_problem="",
            is_first=True,
            newest_query="",
            next_query="page_token=next",
            words=words,
            is_session=is_session,
        )
    )


def page(*firings: ScheduleFiring) -> Page:
    return read_html(rendered(*firings))


def test_a_firing_that_failed_says_why() -> None:
    shown = page(firing(FiringOutcome.FAILED, reason="RUN_QUEUE_FULL", message="100 runs wait"))
    assert "failed RUN_QUEUE_FULL: 100 runs wait" in shown.text
    assert shown.links == []


def test_a_firing_that_was_skipped_leads_to_the_session_that_went_on() -> None:
    shown = page(firing(FiringOutcome.SKIPPED, session=SESSION))
    assert f"skipped {SESSION} went on" in shown.text
    assert shown.links == [f"/sessions/{SESSION}"]


def test_each_outcome_has_its_shape() -> None:
    shown = page(*(firing(one) for one in FiringOutcome))
    icons = [one["class"] for one in shown.tags("svg")]
    assert len({*icons}) == len([*FiringOutcome])


def test_a_hostile_refusal_stays_text() -> None:
    text = rendered(firing(FiringOutcome.FAILED, session=MARKUP, reason=MARKUP, message=f"{MARKUP}{UNSEEN}"))
    shown = read_html(text)
    assert not {*UNSEEN} & {*text}
    assert not shown.tags("script")
    assert not shown.tags("img")
    assert shown.links == []
    assert shown.text.count("<script>alert(1)</script>") == 3


def test_an_empty_page_says_what_is_missing() -> None:
    assert "It was not due yet." in read_html(rendered()).text
    assert "No firing of the history is like this." in read_html(rendered(outcome="MISSED")).text
    more = read_html(rendered(outcome="MISSED", token="next"))
    assert "No firing on this page." in more.text
    assert more.links == ["/schedules/nightly?page_token=next"]
