from __future__ import annotations

from rollart_hpc.launch.restarts import LONGEST_DELAY_S, STABLE_S, RestoreBudget, RoleBudget, delay_s


def test_delays_grow_up_to_a_limit() -> None:
    delays = [delay_s(count) for count in range(1, 20)]
    assert delays == sorted(delays) and delays[0] < 1 and delays[-1] == LONGEST_DELAY_S


def test_each_process_has_its_own_budget() -> None:
    budget = RoleBudget(per_role=2)
    assert [budget.next_delay_s("a", 0) is None for _ in range(3)] == [False, False, True]
    assert budget.next_delay_s("b", 0) is not None


def test_a_process_that_lived_long_is_forgiven() -> None:
    budget = RoleBudget(per_role=1)
    assert budget.next_delay_s("a", 0) is not None
    assert budget.next_delay_s("a", 0) is None
    assert budget.next_delay_s("a", STABLE_S) == delay_s(1)


def test_a_newer_checkpoint_refills_the_restores() -> None:
    budget = RestoreBudget(attempts=1)
    assert budget.next_delay_s(-1) is not None
    assert budget.next_delay_s(-1) is None
    assert budget.next_delay_s(5) is not None
    assert budget.next_delay_s(5) is None


def test_a_cause_that_is_named_twice_is_final() -> None:
    budget = RestoreBudget(attempts=9)
    assert budget.next_delay_s(3, is_known=True) is not None
    assert budget.next_delay_s(3, is_known=False) is not None
    assert budget.next_delay_s(3, is_known=True) is None
    assert budget.next_delay_s(4, is_known=True) is not None


def test_no_restarts_means_none() -> None:
    assert RoleBudget(0).next_delay_s("a", 1e9) is None
    assert RestoreBudget(0).next_delay_s(7) is None


def test_a_damaged_checkpoint_that_was_set_aside_is_no_cause_to_give_up() -> None:
    budget = RestoreBudget(attempts=3)
    assert [budget.next_delay_s(step, is_known=True) is not None for step in (9, 6, 3)] == [True] * 3
    assert budget.next_delay_s(1, is_known=True) is None, "an older checkpoint does not refill the budget"
