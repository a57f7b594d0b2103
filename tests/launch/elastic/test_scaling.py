from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.schema import ElasticConfig, RewardConfig
from rollart_hpc.launch.elastic.scaling import LONGEST_PAUSE_S, Elastic, Scaler
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire.messages import Progress

SETTINGS = ElasticConfig(max_workers=4, queue_per_worker=10, settle_s=5.0, idle_s=30.0)


def test_as_many_as_the_queue_needs_and_no_more_than_allowed() -> None:
    scaler = Scaler(SETTINGS, num_fixed=0)
    assert [scaler.wanted(queue) for queue in (0, 1, 10, 11, 40, 1000)] == [0, 1, 1, 2, 4, 4]
    assert [Scaler(SETTINGS, num_fixed=2).wanted(queue) for queue in (1, 20, 21, 45)] == [0, 0, 1, 3]


def test_from_zero_at_once_then_only_if_it_lasts() -> None:
    scaler = Scaler(SETTINGS, num_fixed=0)
    assert scaler.num_to_request(3, 0, now=0.0) == 1
    assert scaler.num_to_request(35, 1, now=1.0) == 0
    assert scaler.num_to_request(5, 1, now=3.0) == 0  # a short peak
    assert scaler.num_to_request(35, 1, now=4.0) == 0
    assert scaler.num_to_request(35, 1, now=9.0) == 3
    assert scaler.num_to_request(35, 4, now=10.0) == 0


def test_failed_submissions_back_off_until_a_worker_comes() -> None:
    scaler = Scaler(SETTINGS, num_fixed=0)
    pauses = [scaler.failed(now=0.0) for _ in range(9)]
    assert pauses == sorted(pauses) and pauses[0] < pauses[1] and pauses[-1] == LONGEST_PAUSE_S
    assert scaler.num_to_request(5, 0, now=LONGEST_PAUSE_S - 1) == 0
    assert scaler.num_to_request(5, 0, now=LONGEST_PAUSE_S) == 1
    scaler.succeeded()
    assert scaler.failed(now=200.0) == pauses[0]


def test_those_that_have_not_begun_are_called_off_when_the_queue_stays_empty() -> None:
    scaler = Scaler(SETTINGS, num_fixed=0)
    assert [scaler.should_cancel_pending(queue, now) for queue, now in ((0, 0.0), (0, 29.0), (1, 29.5), (0, 31.0))] == [
        False
    ] * 4
    assert scaler.should_cancel_pending(0, 61.0)


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 20)), max_size=50), st.integers(0, 3))
def test_never_more_than_allowed_and_never_nobody_for_long(looks: list[tuple[int, float]], num_fixed: int) -> None:
    scaler, requested, now = Scaler(SETTINGS, num_fixed), 0, 0.0
    for queue, pause_s in looks:
        now += pause_s
        requested += scaler.num_to_request(queue, requested, now)
        assert requested <= SETTINGS.max_workers
        assert not queue or requested + num_fixed > 0


class FakeWorkers:
    def __init__(self) -> None:
        self.num_requested = self.num_pending = 0
        self.log: list[str] = []
        self.problems: list[str] = []

    def request(self, count: int) -> None:
        self.log.append(f"request {count}")
        self.num_requested += count
        self.num_pending += count

    def failures(self) -> list[str]:
        found, self.problems = self.problems, []
        return found

    def worker_left(self) -> None:
        self.log.append("look")

    def cancel_pending(self) -> None:
        self.log.append("cancel pending")

    def end(self) -> None:
        self.log.append("end")


def told(to_score: int, alive: int = 0, state: RunState = RunState.RUNNING) -> Progress:
    return Progress(state, 0, to_score, {"reward": alive})


def test_a_run_that_waits_for_workers_in_the_queue_is_not_idle() -> None:
    workers, notes = FakeWorkers(), []
    elastic = Elastic(RewardConfig(workers=0, elastic=SETTINGS), workers, notes.append)
    assert not elastic.tick(told(0), 0.0)
    assert elastic.tick(told(3), 1.0) and workers.log == ["request 1"]
    assert elastic.tick(told(3), 500.0)  # still in the queue of the cluster
    workers.num_pending = 0
    assert not elastic.tick(told(3, alive=1), 501.0)
    workers.num_requested = 0
    assert not elastic.tick(told(0, alive=0), 600.0)
    assert notes[1:] == ["reward workers: 0 -> 1", "reward workers: 1 -> 0"]


def test_failures_are_told_and_slow_down_the_next_try() -> None:
    workers, notes = FakeWorkers(), []
    elastic = Elastic(RewardConfig(workers=0, elastic=SETTINGS), workers, notes.append)
    workers.problems = ["sbatch: error: no"]
    elastic.failed("reward-elastic-0 ended: exit code 1")
    elastic.tick(told(3), 0.0)
    assert "reward-elastic-0 ended" in notes[0] and "sbatch: error: no" in notes[1] and workers.log == []
    elastic.tick(told(3), 100.0)
    assert workers.log == ["request 1"]


def test_a_run_that_ends_asks_for_nobody() -> None:
    workers = FakeWorkers()
    elastic = Elastic(RewardConfig(workers=0, elastic=SETTINGS), workers, print)
    assert not elastic.tick(told(3, state=RunState.DRAINED), 0.0) and workers.log == []
    assert elastic.tick(told(3, state=RunState.STARTING), 0.0) and workers.log == ["request 1"]


def test_without_elastic_workers_nobody_is_asked_for() -> None:
    workers = FakeWorkers()
    elastic = Elastic(RewardConfig(workers=0), workers, print)
    assert not elastic.tick(told(99), 0.0)
    elastic.end()
    assert workers.log == []
