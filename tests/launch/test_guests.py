"""What runs on a node that somebody offers."""

from __future__ import annotations

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError
from rollart_hpc.launch.guests import neediest_pool, plan_guest
from rollart_hpc.wire.messages import Offer


def offer(cpus: int, num_gpus: int, memory_gb: float = 64.0) -> Offer:
    return Offer("x", [], "", "", "", [str(number) for number in range(num_gpus)], cpus, memory_gb, True)


def test_as_many_engines_as_fit_and_a_relay() -> None:
    loaded = load_all("quickstart", ["pools.compute.tensor_parallel=2"], site="dev")
    procs = plan_guest(offer(16, 8), "guest-x-1", "compute", loaded.config, loaded.site)
    assert [proc.role for proc in procs] == ["engine"] * 4 + ["relay"]
    assert {proc.node for proc in procs} == {"guest-x-1"} and {proc.pool for proc in procs[:4]} == {"compute"}
    assert [proc.gpus for proc in procs] == [(0, 1), (2, 3), (4, 5), (6, 7), ()]
    assert len(plan_guest(offer(1, 8), "g", "compute", loaded.config, loaded.site)) == 2, "one shares its CPU"
    assert len(plan_guest(offer(16, 8, 7.0), "g", "compute", loaded.config, loaded.site)) == 4, "memory for three"
    with pytest.raises(UserError, match="needs 1 CPUs, 2 GPUs, 2 GB, and the node offers 16 CPUs, 1 GPUs"):
        plan_guest(offer(16, 1), "g", "compute", loaded.config, loaded.site)
    with pytest.raises(UserError, match="offers 16 CPUs, 0 GPUs"):
        plan_guest(offer(16, 0), "g", "compute", loaded.config, loaded.site)


def test_the_pool_that_needs_engines_most() -> None:
    config = load_all("quickstart", ["pools.compute.engines=2", "pools.bandwidth.engines=2"], site="dev").config
    there = {"compute": 2, "bandwidth": 1}
    assert neediest_pool(config, {"compute": 30, "bandwidth": 20}, there) == "bandwidth"
    assert neediest_pool(config, {"compute": 50, "bandwidth": 20}, there) == "compute"
    assert neediest_pool(config, {}, there) == "bandwidth"
