"""Budgets of strangers, and how long one is left out."""

from swarm.network.budgets import FIRST_BAN_S, LONGEST_BAN_S, REMEMBERED, Allowance, Bans, Budgets
from swarm.values import PeerId

EVE, BOB = PeerId("eve"), PeerId("bob")


def test_budget_is_spent_by_one_and_not_by_another() -> None:
    budgets = Budgets(Allowance(burst=2, per_s=1))
    assert [budgets.take(EVE, 1, 0.0) for _ in range(3)] == [True, True, False]
    assert budgets.take(BOB, 2, 0.0)


def test_budget_fills_up_again_to_its_burst_and_no_further() -> None:
    budgets = Budgets(Allowance(burst=2, per_s=1))
    assert budgets.take(EVE, 2, 0.0)
    assert not budgets.take(EVE, 1, 0.5)
    assert budgets.take(EVE, 1, 1.0)
    assert not budgets.take(EVE, 3, 100.0)
    assert budgets.take(EVE, 2, 100.0)


def test_bans_double_and_end() -> None:
    bans, now, lengths = Bans(), 0.0, []
    for _ in range(8):
        bans.fault(EVE, now, silent=False)
        begun = now
        while bans.is_banned(EVE, now):
            now += 1.0
        lengths.append(now - begun)
    assert lengths[:3] == [FIRST_BAN_S, 2 * FIRST_BAN_S, 4 * FIRST_BAN_S]
    assert lengths[-1] == LONGEST_BAN_S


def test_who_speaks_again_is_silent_no_more() -> None:
    bans = Bans()
    bans.fault(EVE, 0.0, silent=True)
    bans.heard(EVE)
    assert not bans.is_banned(EVE, 0.0)


def test_who_answered_nonsense_stays_banned_though_it_speaks() -> None:
    bans = Bans()
    bans.fault(EVE, 0.0, silent=False)
    bans.heard(EVE)
    assert bans.is_banned(EVE, 0.0)
    bans.forgive(EVE)
    assert not bans.is_banned(EVE, 0.0)


def test_of_many_strangers_only_the_latest_are_remembered() -> None:
    bans = Bans()
    for number in range(REMEMBERED + 1):
        bans.fault(PeerId(str(number)), 0.0, silent=False)
    assert not bans.is_banned(PeerId("0"), 0.0)
    assert bans.is_banned(PeerId("1"), 0.0)
