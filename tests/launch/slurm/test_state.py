"""How a run on a cluster stands, as those see it who look again and again."""

from __future__ import annotations

from rollart_hpc.launch.slurm.state import SURE_S, StateWatch
from rollart_hpc.vocabulary import RunState


def test_killed_is_believed_only_when_it_lasts():
    now = [0.0]
    watch = StateWatch(lambda: now[0])
    assert watch.is_stable(RunState.FINISHED) and not watch.is_stable(RunState.KILLED)
    now[0] = SURE_S - 1
    assert not watch.is_stable(RunState.KILLED)
    assert watch.is_stable(RunState.PENDING)  # it was only about to be started again
    now[0] = SURE_S + 1
    assert not watch.is_stable(RunState.KILLED)
    now[0] = 2 * SURE_S + 1
    assert watch.is_stable(RunState.KILLED)
