"""The tiers of the simulation keep prefixes, cut least recently used tails, and never lose count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tools.scaling.cache import Caches, Tier


def test_the_least_recently_used_tail_goes_first() -> None:
    tier = Tier(100)
    for chain, tokens in ((1, 50), (2, 40), (1, 60)):
        tier.store(chain, tokens)
    tier.store(3, 10)
    assert (tier.length(1), tier.length(2), tier.length(3), tier.used) == (60, 30, 10, 100)


def test_a_running_request_keeps_its_tokens() -> None:
    tier = Tier(100)
    tier.store(1, 80)
    tier.pin(1)
    tier.store(2, 30)
    assert (tier.length(1), tier.length(2)) == (80, 20)
    assert tier.fits(20)
    assert not tier.fits(21)
    tier.unpin(1)
    assert tier.fits(100)


def test_a_broken_prefix_leaves_its_tail_behind_until_it_is_evicted() -> None:
    tier = Tier(100)
    tier.store(1, 60)
    tier.branch(1, 20)
    tier.store(1, 50)
    assert (tier.length(1), tier.used) == (50, 90)
    tier.store(2, 50)
    assert (tier.length(1), tier.length(2), tier.used) == (50, 50, 100)


def test_a_look_up_takes_the_nearest_tier_first() -> None:
    caches = Caches(Tier(100), Tier(200), Tier(400))
    caches.gpu.store(1, 30)
    assert caches.host is not None
    assert caches.l3 is not None
    caches.host.store(1, 50)
    caches.l3.store(1, 90)
    hit = caches.look_up(1, shared=80, prompt=81)
    assert (hit.gpu, hit.host, hit.shared, hit.new) == (30, 20, 30, 1)
    whole = caches.look_up(1, shared=10, prompt=10)
    assert (whole.gpu, whole.new) == (9, 1), "a prompt's last token is always computed"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 150), st.booleans()), max_size=40))
def test_counts_always_add_up(steps: list[tuple[int, int, bool]]) -> None:
    tier = Tier(200)
    for chain, tokens, branches in steps:
        if branches and tier.length(chain):
            tier.branch(chain, tier.length(chain) // 2)
        tier.store(chain, tokens)
        assert tier.used == sum(tier.resident.values()) <= 200
        assert tier.length(chain) == tokens
