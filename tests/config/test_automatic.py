"""`affinity: auto`: what may be chosen, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.automatic import options_of
from rollart_hpc.config.load import load, load_all
from rollart_hpc.config.schema import PoolConfig, RunConfig
from rollart_hpc.errors import ConfigError

Write = Callable[[str, str], Path]
RUN = "tasks:\n  tasks/lake.yaml: {affinity: auto}\n"
SITE = """
launcher: slurm
classes:
  cpu: {partition: cpu, cpus: 16}
  h800: {partition: h800, gpu: h800, gpus: 8, cpus: 16}
  odd: {partition: odd, gpus: 8, cpus: 16}
serves: {cpu: cpu, compute: h800, bandwidth: odd}
"""


def problems(*arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_all(*arguments)  # type: ignore[arg-type]
    return "\n".join(caught.value.problems)


def test_options_are_values_of_affinity_and_none_stands_for_the_same_pools_as_another() -> None:
    pools = {"compute": PoolConfig(), "fast": PoolConfig(profile="compute"), "wide": PoolConfig(profile="bandwidth")}
    assert options_of(RunConfig(pools=pools)) == {
        "any": (), "compute": ("compute", "fast"), "bandwidth": ("wide",), "fast": ("fast",),
    }  # fmt: skip
    assert options_of(RunConfig()) == {"any": (), "compute": ("compute",), "bandwidth": ("bandwidth",)}


def test_on_one_machine_pools_stand_for_the_classes_of_the_packaged_site(write: Write) -> None:
    run = write("r.yaml", RUN)
    assert load(run).tasks["lake"].affinity == "auto"
    found = problems(run, ["pools={fast: {}}"])
    assert "tasks.lake.affinity: auto compares GPUs, but pool fast has no class of site local; set" in found


def test_classes_without_figures_are_told(write: Write) -> None:
    site, run = write("s.yaml", SITE), write("r.yaml", RUN)
    found = problems(run, [], site)
    assert "the figures of class odd (pool bandwidth) are unknown; set gpu, or tflops and bandwidth_tb_s" in found
    assert load(run, ["pools={compute: {}}"], site).tasks["lake"].affinity == "auto"
    assert load(run, ["tasks.lake.affinity=compute"], site)


def test_mistakes(write: Write) -> None:
    split = "engine: {kind: vllm}\ntasks:\n  tasks/lake.yaml: {affinity: auto, split: true}\n"
    assert "split: true says which pools serve it; set affinity to any" in problems(write("r.yaml", split))
    assert "pools.auto: a name has only letters" in problems(write("p.yaml", RUN + "pools: {auto: {class: compute}}\n"))
