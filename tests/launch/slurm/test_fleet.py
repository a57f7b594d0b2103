"""Which jobs are submitted and cancelled, given what Slurm shows."""

from __future__ import annotations

from rollart_hpc.launch.slurm.fleet import FIRST_DELAY_S, LONGEST_DELAY_S, Fleet, QueuedJob


def test_each_wanted_unit_gets_one_job() -> None:
    fleet = Fleet({"trainer", "h20-0"})
    assert fleet.look([], 0.0).submit == ["h20-0", "trainer"]
    fleet.submitted("trainer", 7)
    rows = [QueuedJob("trainer", 7, "PENDING", "Resources")]
    assert fleet.look(rows, 1.0).submit == ["h20-0"], "sbatch timed out for it, and there is no such job"
    rows.append(QueuedJob("h20-0", 8, "RUNNING"))
    assert fleet.look(rows, 2.0) == ([], [], []), "found by its name"
    assert [job.unit for job in fleet.pending()] == ["trainer"]


def test_jobs_of_an_earlier_supervisor_are_adopted_and_doubles_cancelled() -> None:
    fleet = Fleet({"h20-0"})
    rows = [QueuedJob("h20-0", 4, "PENDING"), QueuedJob("h20-0", 5, "RUNNING"), QueuedJob("h20-0", 3, "TIMEOUT")]
    assert fleet.look(rows, 0.0) == ([], [4], [])
    assert fleet.live() == [rows[1]]


def test_a_job_that_slurm_requeues_is_left_alone() -> None:
    fleet = Fleet({"h20-0"})
    fleet.submitted("h20-0", 4)
    for state in ("RUNNING", "COMPLETING", "REQUEUED", "PENDING", "CONFIGURING", "RUNNING"):
        assert fleet.look([QueuedJob("h20-0", 4, state)], 0.0) == ([], [], [])


def test_a_job_that_ended_is_replaced_later_and_later_until_an_agent_comes() -> None:
    fleet, now, delays = Fleet({"h20-0"}), 0.0, []
    for job in range(1, 12):
        fleet.submitted("h20-0", job)
        ended = fleet.look([QueuedJob("h20-0", job, "FAILED")], now)
        assert [row.job for row in ended.ended] == [job] and not ended.submit
        began = now
        while not fleet.look([], now).submit:
            now += 1.0
        delays.append(now - began)
    assert delays == sorted(delays) and delays[0] == 2 * FIRST_DELAY_S and delays[-1] == LONGEST_DELAY_S
    assert fleet.num_failures("h20-0") == 11
    fleet.submitted("h20-0", 50)
    fleet.came("h20-0")
    assert fleet.num_failures("h20-0") == 0
    ended = fleet.look([], now)  # Slurm no longer knows it
    assert [row.state for row in ended.ended] == ["UNKNOWN"]
    assert fleet.look([], now + FIRST_DELAY_S).submit == ["h20-0"]


def test_what_is_no_longer_wanted_is_cancelled_and_not_replaced() -> None:
    fleet = Fleet({"e-0", "e-1"})
    rows = [QueuedJob("e-0", 1, "RUNNING"), QueuedJob("e-1", 2, "RUNNING")]
    fleet.look(rows, 0.0)
    fleet.wanted = {"e-0"}
    assert fleet.look(rows, 1.0).cancel == [2]
    assert fleet.look([rows[0], QueuedJob("e-1", 2, "CANCELLED")], 900.0).submit == []


def test_a_refused_job_is_tried_again_later() -> None:
    fleet = Fleet({"trainer"})
    fleet.refused("trainer", 0.0)
    assert not fleet.look([], 1.0).submit and fleet.look([], 2.0).submit == ["trainer"]
