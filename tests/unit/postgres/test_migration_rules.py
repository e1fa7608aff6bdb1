"""A migration lets the release before it run on, or says that it does not."""

from pathlib import Path

import pytest

from tests.support.postgres.migration_rules import findings

ROOT = Path(__file__).resolve().parents[3]
LATER = [file for file in ROOT.glob("services/*/*/migrations/*.sql") if not file.name.startswith("0001_")]
MARK = "-- contracts: no release needs it since 0002_expand\n"


def test_later_migrations_only_expand_or_say_that_they_contract() -> None:
    broken = {f"{file.parts[-3]}/{file.name}": findings(file.read_text()) for file in LATER}
    assert {name: rules for name, rules in broken.items() if rules} == {}


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("alter table runs drop column label;", "ban-drop-column"),
        ("alter table runs rename column label to title;", "renaming-column"),
        ("alter table runs rename to works;", "renaming-table"),
        ("alter table runs alter column epoch type numeric;", "changing-column-type"),
        ("alter table runs alter column label set not null;", "adding-not-nullable-field"),
        ("alter table runs add column title text not null;", "adding-required-field"),
        ("alter table runs drop constraint runs_check;", "ban-drop-constraint"),
        ("drop table runs;", "ban-drop-table"),
        ("drop view served_time;", "ban-drop-view"),
        ("drop function count_leased_runs(text);", "ban-drop-function"),
        ("drop type run_state;", "ban-drop-type"),
        ("alter type run_state rename value 'LOST' to 'GONE';", "renaming-object"),
    ],
)
def test_what_takes_something_away_needs_the_mark(statement: str, rule: str) -> None:
    assert findings(statement) == {rule}
    assert findings(MARK + statement) == set()


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("create index runs_label_idx on runs (label);", "require-concurrent-index-creation"),
        ("alter table runs add constraint positive check (epoch > 0);", "constraint-missing-not-valid"),
        (
            "alter table runs add column title text;\nalter table sessions add column title text;",
            "several-tables",
        ),
        ("create policy one on runs using (true);\nupdate sessions set title = '';", "several-tables"),
    ],
)
def test_what_stops_the_running_release_is_refused_with_the_mark_too(statement: str, rule: str) -> None:
    assert findings(statement) == findings(MARK + statement) == {rule}


@pytest.mark.parametrize(
    "text",
    [
        "alter table runs add column title text;",
        "alter table runs add column title text not null default '';",
        "update runs r set title = s.title from sessions s where s.session_id = r.session_id;",
        "create table steps (tenant_id text, step_id text, primary key (tenant_id, step_id));",
        "create table steps (step_id text primary key);\ncreate index steps_idx on steps (step_id);",
        "create table steps (id text primary key);\nalter table steps enable row level security;\n"
        "alter table runs add column step_id text;\ncreate view shown as select * from sessions;",
        "-- transactional: false\ncreate index concurrently if not exists runs_title_idx on runs (title);\n"
        "create index concurrently if not exists sessions_title_idx on sessions (title);",
        "-- transactional: false\ncreate index concurrently if not exists runs_title_idx on runs (title);",
        "alter table runs add constraint positive check (epoch > 0) not valid;",
        "create or replace function count_runs() returns bigint language sql as 'select count(*) from runs';",
    ],
)
def test_what_expands_is_accepted(text: str) -> None:
    assert findings(text) == set()
