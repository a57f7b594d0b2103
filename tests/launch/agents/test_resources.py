from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.errors import SiteError
from rollart_hpc.launch.agents.resources import (
    Cores,
    cache_variables,
    gpu_variables,
    own_cores,
    parse_cpus,
    visible_gpus,
)


def test_gpus_keep_the_names_that_slurm_gave_them() -> None:
    gpus = visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3,GPU-8f,MIG-1"})
    assert gpu_variables(gpus, [1, 2]) == {"CUDA_VISIBLE_DEVICES": "3,GPU-8f"}


@pytest.mark.parametrize("value", ["", "NoDevFiles"])
def test_a_process_without_gpus_sees_none_whatever_its_agent_sees(value: str) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == []
    assert gpu_variables(["0", "1"], []) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_gpu_that_the_node_does_not_show_is_an_error_that_says_what_it_shows() -> None:
    with pytest.raises(SiteError, match="wants GPU 2 of this node, which shows 2: 0,1"):
        gpu_variables(["0", "1"], [2])


def test_caches_are_local_unless_the_user_set_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = cache_variables(tmp_path)
    assert "TRITON_CACHE_DIR" not in found
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")


def test_cores_come_from_one_numa_node_if_one_has_enough() -> None:
    cores = Cores(range(8), [{0, 1, 2, 3}, {4, 5, 6, 7}])
    assert cores.take(3) == {0, 1, 2}
    assert cores.take(2) == {4, 5}
    assert cores.take(1) == {3}
    assert cores.take(3) == set(), "two are left: the process is not pinned"
    cores.give_back({0, 1, 2})
    assert cores.take(5) == {0, 1, 2, 6, 7}


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(1, 16))
def test_no_core_is_given_to_two(counts: list[int], num_cores: int) -> None:
    cores, given_out = Cores(range(num_cores), [set(range(0, num_cores, 2)), set(range(1, num_cores, 2))]), set()
    for count in counts:
        taken = cores.take(count)
        assert len(taken) in (0, count) and not taken & given_out
        given_out |= taken


def test_ranges_of_cpus() -> None:
    assert parse_cpus("0-2,8") == {0, 1, 2, 8}
    assert parse_cpus("") == set()
    assert parse_cpus("3") <= set(range(os.cpu_count() or 1)) | {3}


@pytest.mark.parametrize(
    ("allocated", "node", "is_pinned"),
    [
        ("all", "here", True),
        ("all", "here.example.org", True),
        ("all", "virtual7", False),
        ("1000", "here", False),
        ("", "here", False),
        ("all", "", False),
    ],
)
def test_workers_are_pinned_only_to_cpus_that_no_other_job_has(
    allocated: str, node: str, is_pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "here.cluster")
    on_node = str(len(os.sched_getaffinity(0))) if allocated == "all" else allocated
    cores = own_cores({"SLURM_CPUS_ON_NODE": on_node, "SLURMD_NODENAME": node})
    assert bool(cores.take(1)) == is_pinned
