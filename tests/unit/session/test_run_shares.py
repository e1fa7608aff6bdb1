"""The rule of shares keeps its promises, whatever the tenants and the order in which runs end."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.session.run_shares import Share, claimed

weights = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(weights, st.integers(1, 16), st.integers(0, 3), st.randoms(use_true_random=False))
def test_each_tenant_gets_its_share_as_places_become_free(
    of_tenants: list[int], places: int, reserved: int, random: Random
) -> None:
    """All tenants have endless runs, and one tenant has all places at first.

    A newcomer may have taken a reserved place just before: then the next place is not given away.
    """
    reserved = min(reserved, places - 1)
    running = {f"t{number}": 0 for number in range(len(of_tenants))}
    running["t0"] = places
    weight = dict(zip(running, of_tenants, strict=True))
    for _ in range(20 * places):
        ending = random.choice([tenant for tenant, count in running.items() for _ in range(count)])
        running[ending] -= 1
        shares = {tenant: Share(64, running[tenant], weight[tenant], cap=64) for tenant in running}
        for tenant, count in claimed(shares, places - sum(running.values()), reserved).items():
            running[tenant] += count
    total = sum(of_tenants)
    for tenant, count in running.items():
        assert count >= (places - reserved) * weight[tenant] // total - min(reserved, 1)


@given(st.integers(2, 16), st.integers(1, 8), st.integers(1, 5))
def test_a_newcomer_gets_a_reserved_place_at_once(places: int, waiting: int, weight: int) -> None:
    busy = claimed({"busy": Share(64, weight=weight)}, places, reserved=1)["busy"]
    assert busy == max(1, places - 1)
    shares = {"busy": Share(64, busy, weight), "new": Share(waiting)}
    assert claimed(shares, places - busy, reserved=1) == {"new": 1}


@given(st.integers(1, 64), st.integers(0, 64), st.integers(1, 32))
def test_no_tenant_exceeds_its_limit(limit: int, running: int, cap: int) -> None:
    got = claimed({"t": Share(64, running, cap=cap)}, limit)["t"]
    assert got == max(0, min(limit, cap - running))
