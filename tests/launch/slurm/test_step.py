"""Steps that wait for their orders; the srun is a shell here."""

from __future__ import annotations

import os
import subprocess

import pytest

from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import Order, start_child, wait_for
from rollart_hpc.launch.slurm.step import SrunStep, WarmSteps

PROC = Proc("engine-compute-0", "engine", "compute", "compute-0")
COMMAND = ["python", "-P", "-m", "rollart_hpc.roles.engine", "--name", "engine-compute-0"]


@pytest.fixture
def steps(tmp_path):
    started = []

    def start(script):
        order = Order(PROC, 0, tmp_path / "waiting.log")
        step = start_child(order, ["sh", "-c", script], dict(os.environ), kind=SrunStep, stdin=subprocess.PIPE)
        started.append(step)
        return step

    yield start
    for step in started:
        step.kill_group()


@pytest.fixture
def order(tmp_path):
    (tmp_path / "logs").mkdir()
    return Order(PROC, 3, tmp_path / "logs" / "engine.log")


def test_a_waiting_step_becomes_the_process_of_the_order_and_its_log_moves_along(steps, order):
    warm, step = WarmSteps(), steps('echo ready; read line; echo "told $line"')
    warm.add(step)
    assert warm.take(order, COMMAND) is step
    wait_for([step], 60)
    assert (step.order, step.reap()) == (order, 0)
    assert order.log.read_text() == 'ready\ntold ["--name", "engine-compute-0"]\n'
    assert warm.take(order, COMMAND) is None


def test_a_step_that_ended_while_it_waited_is_not_taken(steps, order):
    warm, step = WarmSteps(), steps("exit 1")
    warm.add(step)
    wait_for([step], 60)
    assert warm.take(order, COMMAND) is None
    assert not order.log.exists()


def test_a_step_that_is_not_needed_ends_by_itself(steps):
    warm, step = WarmSteps(), steps('read line || exit 0; echo "told $line"')
    warm.add(step)
    warm.close()
    wait_for([step], 60)
    assert step.reap() == 0
    assert step.log.read_text() == ""
