"""Environments in real processes (and threads): what they answer, how they fail, what they leave behind."""

from __future__ import annotations

import ast
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rollart_hpc.config.schema import TaskConfig, Trouble
from rollart_hpc.envs import output
from tests.envs.hosting import ODD, Driver, alive, make_task, wait_until_dead

ROOT = Path(__file__).parents[2]
Make = Callable[..., Driver]


@pytest.fixture
def make() -> Iterator[Make]:
    drivers: list[Driver] = []

    def build(slots: int = 4, variables: Sequence[str] = (), **tasks: TaskConfig) -> Driver:
        drivers.append(Driver(slots, variables, **(tasks or {"odd": make_task()})))
        return drivers[-1]

    yield build
    for driver in drivers:
        pids = driver.host.processes.pids
        driver.host.close()
        assert not [pid for pid in pids if alive(pid)]


def pid_of(observation: str) -> int:
    return int(observation.split()[3])


@pytest.mark.parametrize("isolation", ["process", "shared"])
def test_a_trajectory_from_reset_to_outcome(make: Make, isolation: str) -> None:
    driver = make(odd=make_task(isolation=isolation, params={"turns": 2}))
    first = driver.reset("a", 17)
    assert first.kind == "turn" and first.observation.startswith("seed 17 ")
    assert (pid_of(first.observation) == os.getpid()) == (isolation == "shared")
    second = driver.step("a", "hello")
    assert second.observation.startswith("turn 1 5") and not second.done and second.outcome is None
    last = driver.step("a", "x" * 300_000)
    assert last.observation.startswith("turn 2 300000") and last.done
    assert last.outcome == {"turns": 2, "seed": 17, "path": [0, 1]}
    driver.host.release("a")
    driver.host.reset("a", "odd", 18)  # the slot's name is free again
    assert driver.next("a").observation.startswith("seed 18 ")


@pytest.mark.parametrize("isolation", ["process", "shared"])
def test_one_cut_short_tells_its_outcome(make: Make, isolation: str) -> None:
    driver = make(odd=make_task(isolation=isolation))
    driver.reset("a", 3)
    driver.step("a", "x")
    driver.host.finish("a")
    happened = driver.next("a")
    assert happened.done and happened.outcome == {"turns": 1, "seed": 3, "path": [0, 1]}


def test_processes_are_reused_by_the_same_task_after_a_clean_end(make: Make) -> None:
    driver = make(odd=make_task(), other=make_task(params={"turns": 1}))
    first = driver.reset("a").observation
    driver.host.release("a")
    again = driver.reset("b").observation
    assert pid_of(again) == pid_of(first) and "resets 2" in again
    assert pid_of(driver.reset("c", task="other").observation) != pid_of(first)


def test_idle_processes_make_room_for_other_tasks(make: Make) -> None:
    driver = make(slots=2, odd=make_task(), other=make_task())
    old = [pid_of(driver.reset(slot).observation) for slot in "ab"]
    for slot in "ab":
        driver.host.release(slot)
    for slot in "cd":
        driver.reset(slot, task="other")
    wait_until_dead(old)


def test_siblings_have_their_own_randomness(make: Make) -> None:
    driver = make()
    for slot in "ab":
        driver.reset(slot)
    draws = {driver.step(slot, "same").observation for slot in "ab"}
    assert len(draws) == 2


@pytest.mark.parametrize("isolation", ["process", "shared"])
@pytest.mark.parametrize(
    ("response", "detail"),
    [("raise", "RuntimeError: told to"), ("quit", "SystemExit: leaving"), ("number", "observation is a int")],
)
def test_raising_turn_is_data(make: Make, isolation: str, response: str, detail: str) -> None:
    driver = make(odd=make_task(isolation=isolation))
    first = driver.reset("a").observation
    failed = driver.step("a", response)
    assert (failed.kind, failed.status) == ("failed", "env_error") and detail in failed.detail
    assert detail in failed.trace and (response == "number" or "odd.py" in failed.trace)
    second = driver.reset("a").observation  # in a fresh environment: the old one can't be trusted
    assert "resets 1" in second and (isolation == "shared" or pid_of(first) != pid_of(second))


@pytest.mark.parametrize("isolation", ["process", "shared"])
def test_failing_reset_is_data(make: Make, isolation: str) -> None:
    driver = make(odd=make_task(isolation=isolation))
    failed = driver.reset("a", -1)
    assert failed.status == "reset_failed" and "a seed below 0" in failed.detail
    assert driver.reset("a", 1).kind == "turn"


@pytest.mark.parametrize("isolation", ["process", "shared"])
@pytest.mark.parametrize(
    ("environment", "detail"),
    [("Unmakeable", "can't be made"), ("Missing", "has no Missing"), ("sys", "not a class or function")],
)
def test_environment_that_can_not_be_made_fails_its_resets(
    make: Make, isolation: str, environment: str, detail: str
) -> None:
    driver = make(odd=make_task(environment, isolation=isolation))
    failed = driver.reset("a")
    assert failed.status == "reset_failed" and detail in failed.detail


def test_unsendable_outcome_is_an_error(make: Make) -> None:
    driver = make(odd=make_task("Unsendable", params={"turns": 1}))
    driver.reset("a")
    failed = driver.step("a", "x")
    assert failed.status == "env_error" and "can't be sent" in failed.detail


def test_crash_hang_and_silence_leave_the_neighbours_alone(make: Make) -> None:
    """Four at once; only `good` behaves, and it goes on."""
    driver = make(slots=8, odd=make_task(turn_timeout_s=3.0), slow=make_task(reset_timeout_s=5.0))
    slots = ["good", "crash", "spin", "sleep", "hangup"]
    pids = {slot: pid_of(driver.reset(slot).observation) for slot in slots}
    driver.host.step("crash", "exit")
    driver.host.step("spin", "spin")
    driver.host.step("sleep", "sleep 3600")
    driver.host.step("hangup", "hangup")
    driver.host.reset("slow reset", "slow", 1_000_000)
    driver.host.reset("crashing reset", "slow", 2_000_000)
    for _ in range(2):
        assert driver.step("good", "on").kind == "turn"
    ends = {slot: driver.next(slot) for slot in [*slots[1:], "slow reset", "crashing reset"]}
    assert {slot: happened.status for slot, happened in ends.items()} == {
        "crash": "env_crashed", "spin": "env_timeout", "sleep": "env_timeout", "hangup": "env_crashed",
        "slow reset": "reset_timeout", "crashing reset": "reset_failed",
    }  # fmt: skip
    assert "code 9" in ends["crash"].detail and "code 7" in ends["crashing reset"].detail
    assert driver.step("good", "still").done
    wait_until_dead([pid for slot, pid in pids.items() if slot != "good"])
    assert alive(pids["good"])


def test_hanging_thread_is_left_behind(make: Make) -> None:
    driver = make(odd=make_task(isolation="shared", turn_timeout_s=2.0))
    driver.reset("a")
    driver.reset("b")
    assert driver.step("a", "sleep 60").status == "env_timeout"
    assert driver.step("b", "x").kind == "turn"
    assert driver.reset("a").kind == "turn"


def test_garbage_from_a_process_ends_it(make: Make) -> None:
    driver = make()
    pid = pid_of(driver.reset("a").observation)
    failed = driver.step("a", "garbage")
    assert failed.status == "env_crashed" and "does not parse" in failed.detail
    wait_until_dead([pid])


def test_death_between_turns_is_told_at_the_next_turn(make: Make) -> None:
    driver = make()
    pid = pid_of(driver.reset("a").observation)
    os.kill(pid, signal.SIGKILL)
    driver.until_gone(pid)
    assert driver.waiting == []
    failed = driver.step("a", "x")
    assert failed.status == "env_crashed" and "signal 9" in failed.detail


def test_release_of_a_busy_one_kills_it_and_of_a_dead_one_forgets_it(make: Make) -> None:
    driver = make()
    busy, dead = (pid_of(driver.reset(slot).observation) for slot in ("busy", "dead"))
    driver.host.step("busy", "sleep 3600")
    driver.host.release("busy")
    os.kill(dead, signal.SIGKILL)
    driver.until_gone(busy, dead)
    driver.host.release("dead")
    driver.host.release("never used")
    assert driver.waiting == [] and driver.host.wait_s() is None
    assert "resets 1" in driver.reset("busy").observation


def test_what_an_environment_started_is_killed_with_it(make: Make) -> None:
    driver = make(odd=make_task(turn_timeout_s=5.0))
    pid = pid_of(driver.reset("a").observation)
    grandchild = int(driver.step("a", "orphan").observation)
    assert driver.step("a", "sleep 3600").status == "env_timeout"
    wait_until_dead([pid, grandchild])


def test_environment_sees_neither_run_nor_descriptors(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLART_RUN_ROOT", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "LC_TIME", "MY_LICENSE"):
        monkeypatch.setenv(name, "/secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with open("/dev/null") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        driver = make(variables=["MY_LICENSE", "NOT_SET"])
        driver.reset("other")
        driver.reset("a")
        sight = ast.literal_eval(driver.step("a", "look").observation)
    variables = sight["variables"]
    assert [name for name, value in variables.items() if value == "/secret"] == ["LC_TIME", "MY_LICENSE"]
    assert variables["PATH"] == os.environ["PATH"] and variables["CUDA_VISIBLE_DEVICES"] == ""
    assert sight["cwd"] == "/"
    own = {key: value for key, value in sight["descriptors"].items() if not value.startswith("/proc")}
    assert set(own) == {"0", "1", "2", "3"} and own["3"].startswith("socket:") and own["0"] == "/dev/null"
    assert own["1"] == own["2"] and own["1"].startswith("pipe:")  # not the log: its path names the run directory


def test_output_of_environments_is_logged_with_their_task_and_a_flood_of_it_is_not(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = make(odd=make_task("Printing"), loud=make_task("Printing"))
    driver.reset("a")
    driver.reset("b", task="loud")
    driver.step("a", "hello from a task")
    assert driver.step("b", "flood 30000").kind == "turn"  # 3 MB: it is not blocked
    assert driver.step("a", "still heard").kind == "turn"
    driver.host.processes.close()  # the last of it is written then
    lines = [record.getMessage() for record in caplog.records if record.name == "rollart_hpc.env.output"]
    assert "odd: hello from a task" in lines and "odd: still heard" in lines
    loud = [line for line in lines if line.startswith("loud: ")]
    assert 0 < sum(map(len, loud)) < 2 * output.BURST_BYTES
    assert sum("dropping its output" in line for line in loud) == 1 and "were dropped" in loud[-1]


@pytest.mark.parametrize("isolation", ["process", "shared"])
def test_a_slow_import_of_a_file_and_its_neighbour_fails_no_reset(make: Make, tmp_path: Path, isolation: str) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(0.3)\nfrom odd import Counting\n")
    shutil.copy(ODD, tmp_path / "odd.py")
    driver = make(slots=8, slow=TaskConfig(environment=f"{slow}:Counting", isolation=isolation))
    for slot in range(8):
        driver.host.reset(slot, "slow", 5)
    assert {driver.next(slot).kind for slot in range(8)} == {"turn"}


def test_large_observations_and_many_slots(make: Make) -> None:
    driver = make(slots=64)
    for number in range(64):
        driver.host.reset(number, "odd", number)
    pids = {pid_of(driver.next(number).observation) for number in range(64)}
    assert len(pids) == 64
    for number in range(0, 64, 16):
        driver.host.step(number, "big 3000000")
    for number in range(0, 64, 16):
        assert len(driver.next(number).observation) == 3_000_000


def test_death_of_the_fork_server_fails_its_children_and_a_new_one_starts(make: Make) -> None:
    driver = make()
    pids = [pid_of(driver.reset(slot).observation) for slot in ("asked", "idle", "reset")]
    driver.host.step("asked", "sleep 3600")
    driver.host.release("reset")
    os.kill(driver.host.processes.pids[-1], signal.SIGKILL)
    assert driver.next("asked").status == "env_crashed"
    wait_until_dead(pids)
    assert driver.step("idle", "x").status == "env_crashed"
    assert driver.reset("asked").kind == "turn"


def test_environments_are_closed_at_the_end(make: Make, tmp_path: Path) -> None:
    note = tmp_path / "note"
    driver = Driver(odd=make_task(params={"note": str(note)}))
    driver.reset("a")
    driver.host.close()
    assert note.read_text() == "closed"


def test_nothing_is_left_of_a_killed_worker() -> None:
    """A worker with idle, busy and spinning environments, and one that has started a process itself."""
    script = (
        "from tests.envs.hosting import ODD, Driver, make_task\n"
        "d = Driver(odd=make_task())\n"
        "for slot in 'abcd': d.reset(slot)\n"
        "orphan = d.step('a', 'orphan').observation\n"
        "d.host.step('b', 'spin'); d.host.step('c', 'sleep 3600'); d.host.release('d')\n"
        "print(orphan, *d.host.processes.pids, flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", script]
    worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pids = [int(word) for word in worker.stdout.readline().split()]
    assert len(pids) == 6 and all(alive(pid) for pid in pids)
    worker.kill()
    wait_until_dead(pids)
    worker.wait()
    worker.stdout.close()
    assert worker.stdin is not None
    worker.stdin.close()


def test_injected_trouble_reaches_processes(make: Make) -> None:
    driver = make(
        resets=make_task(trouble=Trouble(reset_failure_rate=1.0)),
        turns=make_task(trouble=Trouble(turn_error_rate=1.0)),
        crashes=make_task(trouble=Trouble(crash_rate=1.0)),
        hangs=make_task(trouble=Trouble(hang_rate=1.0), turn_timeout_s=0.5),
    )
    assert driver.reset("a", task="resets").status == "reset_failed"
    statuses = {}
    for task in ("turns", "crashes", "hangs"):
        assert driver.reset(task, task=task).kind == "turn"
        statuses[task] = driver.step(task, "x").status
    assert statuses == {"turns": "env_error", "crashes": "env_crashed", "hangs": "env_timeout"}


def test_slurms_sigterm_ends_no_environment(make: Make) -> None:
    """It reaches all processes of a job at once, and the run still has a checkpoint to save."""
    driver = make()
    for slot in "ab":
        driver.reset(slot)
    helper = int(driver.step("b", "orphan").observation)
    driver.host.step("a", "sleep 0.5")
    driver.host.reset("c", "odd", 5)
    for pid in driver.host.processes.pids:
        os.kill(pid, signal.SIGTERM)
    assert driver.next("a").kind == driver.next("c").kind == driver.step("b", "hello").kind == "turn"
    os.kill(helper, signal.SIGTERM)
    wait_until_dead([helper])  # what an environment starts can be ended in the usual way
