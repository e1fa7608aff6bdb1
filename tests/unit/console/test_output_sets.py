"""Published files as they are shown: some of many, and with names that cannot do anything."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from spawnmesh_client.views import EventKind
from spawnmesh_console.clients.output_sets import OutputSetPage
from spawnmesh_console.domain.event_sentences import event_sentence
from spawnmesh_console.domain.output_sets import PAGE_FILES, ShownFile, ShownOutputSet
from spawnmesh_console.web.rendering import open_templates

SESSION = SimpleNamespace(session_id="ses_1", label="")
HOSTILE = "</a><script>alert(1)</script>\u202egnp.exe\u200b \x1b[31m{{ 7*7 }}"


def output_set(first_place: int, count: int, *, file_count: int, name: str = "a") -> ShownOutputSet:
    files = tuple(ShownFile(first_place + n, name, 1, HOSTILE) for n in range(count))
    return ShownOutputSet("att_1", "run_1", datetime.now(UTC), file_count, file_count, files)


def rendered(template: str, **values: object) -> str:
    common = {"session": SESSION, "person": None, "path": "/"}
    return open_templates().get_template(template).render(**common, **values)


@pytest.mark.parametrize(
    ("first_place", "count", "file_count", "links"),
    [
        (0, 3, 3, []),
        (0, PAGE_FILES, 2 * PAGE_FILES, [f"?from={PAGE_FILES}"]),
        (PAGE_FILES, PAGE_FILES, 2 * PAGE_FILES, ["?from=0"]),
        (50, PAGE_FILES, 999, ["?from=0", f"?from={50 + PAGE_FILES}"]),
    ],
)
def test_page_of_a_set_leads_to_the_files_before_and_behind(
    first_place: int, count: int, file_count: int, links: list[str]
) -> None:
    shown = output_set(first_place, count, file_count=file_count)
    html = rendered("published_set.html", shown=shown)
    assert [link for link in ("?from=0", f"?from={shown.end_place}") if f'"{link}"' in html] == links
    assert (f"{first_place + 1} to {first_place + count} of {file_count}" in html) is bool(links)


def test_hostile_names_are_text_on_each_page() -> None:
    one = output_set(0, 1, file_count=1, name=HOSTILE)
    pages = {
        "session_published.html": {"published": OutputSetPage([one], "")},
        "published.html": {"published": OutputSetPage([one], ""), "is_first": True},
        "published_set.html": {"shown": one},
    }
    for template, values in pages.items():
        html = rendered(template, **values)
        assert html.count("&lt;/a&gt;&lt;script&gt;alert(1)") == 2, template
        assert html.count("⟨U+202E⟩gnp.exe⟨U+200B⟩ ␛[31m{{ 7*7 }}") == 2, template
        assert not {*"\u202e\u200b\x1b"} & {*html}, template
        assert "<script>alert" not in html, template


def test_files_of_a_deleted_set_have_no_link() -> None:
    one = output_set(0, 1, file_count=1, name="report.txt")
    assert "/published/att_1/files/0" in rendered("published_set.html", shown=one)
    gone = rendered("published_set.html", shown=replace(one, is_deleted=True))
    assert "/files/" not in gone
    assert "report.txt" in gone
    assert "The files were deleted." in gone


def test_each_kind_of_event_has_a_sentence() -> None:
    sentences = {kind: event_sentence(1, None, kind.value, "", "", "", "").sentence for kind in EventKind}
    assert sentences[EventKind.FILES_PUBLISHED] == "The run published files."
    known = {kind for kind, sentence in sentences.items() if "newer version" not in sentence}
    assert known == {*EventKind} - {EventKind.UNKNOWN}
