"""When the delivery of an event is tried again."""

from datetime import timedelta

from spawnmesh_hook.jobs.event_delivery import MAX_ATTEMPT_COUNT, RETRY


def test_an_observer_has_about_a_day_and_is_called_soon_after_a_short_absence() -> None:
    pauses = [RETRY.pause_after(attempt, 0.0) for attempt in range(1, MAX_ATTEMPT_COUNT)]
    times = [sum(pauses[:count], timedelta()) for count in range(1, len(pauses) + 1)]
    assert timedelta(hours=23) < times[-1] < timedelta(hours=25)
    back = timedelta(seconds=90)
    assert min(time for time in times if time > back) < 2 * back
    assert RETRY.is_last(MAX_ATTEMPT_COUNT)
    assert not RETRY.is_last(MAX_ATTEMPT_COUNT - 1)
