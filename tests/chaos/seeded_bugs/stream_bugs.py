"""Bugs that let a watched stream repeat, omit or disorder something (I12)."""

from tests.chaos.seeded_bugs.bug import Change, SeededBug

_SESSION = "services/session/spawnmesh_session"
_MEMBER = f"{_SESSION}/operations/member_watch.py"
_FEED = f"{_SESSION}/operations/member_feed.py"
_FAMILY = f"{_SESSION}/operations/family_watch.py"
_OF_TRANSCRIPT = "tests/contract/session/runs/test_watch_transcript.py"
_OF_FAMILY = "tests/contract/session/runs/test_watch_family.py"
_OF_RUN_EVENTS = "tests/contract/session/runs/test_run_events.py"

STREAM_BUGS = (
    SeededBug(
        "the end of a run overtakes its last entries",
        (Change(_MEMBER, "return not is_end or await self._is_caught_up()", "return True"),),
        (f"{_OF_TRANSCRIPT}::test_a_watch_begins_behind_an_event_and_an_entry",),
    ),
    SeededBug(
        "a cursor forgets the events that were sent",
        (
            Change(
                _FEED,
                "self.position = replace(self.position, event_number=event.number)",
                "self.position = replace(self.position)",
            ),
        ),
        (
            f"{_OF_TRANSCRIPT}::test_every_cursor_continues_with_exactly_the_rest",
            f"{_OF_FAMILY}::test_every_cursor_continues_with_exactly_the_rest_of_each_session",
        ),
    ),
    SeededBug(
        "a cursor forgets the entries that were sent",
        (
            Change(
                _FEED,
                "self.position = replace(self.position, transcript_cursor=response.cursor)",
                "self.position = replace(self.position)",
            ),
        ),
        (f"{_OF_FAMILY}::test_every_cursor_continues_with_exactly_the_rest_of_each_session",),
    ),
    SeededBug(
        "a draft stays open behind the end of its run",
        (
            Change(
                _FEED,
                "if is_over or (is_end and event.run_id == self.position.open_run_id):",
                "if is_over:",
            ),
        ),
        (f"{_OF_TRANSCRIPT}::test_the_end_of_a_run_retracts_what_it_was_saying",),
    ),
    SeededBug(
        "a cursor forgets a session that has not ended",
        (Change(_FAMILY, "has_ended=not self._ends_at_newest", "has_ended=True"),),
        (f"{_OF_FAMILY}::test_every_cursor_continues_with_exactly_the_rest_of_each_session",),
    ),
    SeededBug(
        "a session that has ended speaks again after a resume",
        (
            Change(
                _FAMILY,
                "if isinstance(message, SessionEvent) and message.kind in TERMINAL_EVENT_KINDS:",
                "if False:",
            ),
        ),
        (f"{_OF_FAMILY}::test_every_cursor_continues_with_exactly_the_rest_of_each_session",),
    ),
    SeededBug(
        "a cursor leads a run out of its family",
        (Change(_FAMILY, "            self._family_root,\n        )", '            "",\n        )'),),
        (f"{_OF_FAMILY}::test_a_run_watches_its_own_family_and_no_cursor_leads_out_of_it",),
    ),
    SeededBug(
        "a repeated report of an event is told again",
        (
            Change(
                f"{_SESSION}/domain/run_events.py",
                "fresh = events[max(0, known_count + 1 - first_number) :]",
                "fresh = events",
            ),
        ),
        (f"{_OF_RUN_EVENTS}::test_ReportRunEvents__each_is_an_event_and_a_repeat_adds_nothing",),
    ),
)
