"""How a run on a cluster stands, as those see it who look again and again."""

from __future__ import annotations

from rollart_hpc.launch.slurm.state import SURE_S, Ends


def test_killed_is_believed_only_when_it_lasts():
    now = [0.0]
    ends = Ends(lambda: now[0])
    assert ends.believes("finished") and not ends.believes("killed")
    now[0] = SURE_S - 1
    assert not ends.believes("killed")
    assert ends.believes("pending")  # it was only about to be started again
    now[0] = SURE_S + 1
    assert not ends.believes("killed")
    now[0] = 2 * SURE_S + 1
    assert ends.believes("killed")
