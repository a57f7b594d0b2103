"""What a run file may ask of engines."""

from __future__ import annotations

import pytest

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["engine.kind=vllm", "engine.options.seed=1"], "engine.options.seed: set by the run itself"),
        (
            ["engine.kind=vllm", "tasks.sorting.split=true", "engine.options.kv_transfer_config={}"],
            "engine.options.kv_transfer_config: rollart-hpc sets it",
        ),
        (["engine.options.block_size=16"], "engine torch has no options"),
        (["tasks.sorting.split=true"], "set engine.kind: vllm"),
        (["engine.kind=vllm", "tasks.sorting.split=true", "mode=sync"], "mode areal or rollart"),
        (["engine.kind=vllm", "tasks.sorting.split=true", "pools.compute.tensor_parallel=2"], "same tensor_parallel"),
    ],
)
def test_what_can_not_work_is_refused(overrides, said):
    with pytest.raises(UserError) as caught:
        load_all("quickstart", overrides)
    assert said in str(caught.value)


@pytest.mark.parametrize("run", ["tiny-vllm", "tiny-split"])
def test_run_files_on_vllm_are_good(run):
    assert load_all(run).config.engine.kind == "vllm"
