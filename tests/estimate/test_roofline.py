"""The roofline against arithmetic done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.model_shape import ModelShape
from rollart_hpc.estimate import roofline
from rollart_hpc.estimate.memory import EngineSize, engine_parts, kv_capacity, kv_token_bytes
from rollart_hpc.estimate.roofline import Efficiency, Pace
from rollart_hpc.estimate.shapes import SHAPES
from rollart_hpc.hardware import GPUS, Gpu

SMALL = ModelShape(hidden=8, layers=2, heads=4, kv_heads=2, head_dim=2, ffn=16, vocabulary=10, is_tied=False)
# A block has 8 x (2 x 8 + 2 x 4 + 3 x 16) + 16 = 592 parameters; the head has 80, the last norm 8.
UNIT = Gpu(tflops=1e-12, memory_gb=0, bandwidth_tb_s=1e-12, cost=0, nvlink_gb_s=2.5e-9)  # 1 FLOP/s, 1 byte/s
WHOLE = Efficiency(1.0, 1.0)


def test_a_small_model_by_hand() -> None:
    pace = roofline.pace_of(SMALL, UNIT, efficiency=WHOLE, overhead_s=0.5)
    assert pace.prefill_s == pytest.approx(2 * (2 * 592 + 80))
    assert pace.attention_s == pytest.approx(4 * 2 * 8)
    assert pace.weights_s == pytest.approx(2 * (2 * 592 + 2 * 80 + 8))
    assert pace.kv_s == pytest.approx(2 * 2 * 4 * 2)
    assert (pace.exchange_s, pace.fixed_s) == (0.0, 0.5)


def test_two_gpus_halve_the_work_and_exchange_activations() -> None:
    one = roofline.pace_of(SMALL, UNIT, 1, WHOLE)
    two = roofline.pace_of(SMALL, UNIT, 2, WHOLE)
    assert two.prefill_s == pytest.approx(one.prefill_s / 2)
    assert two.kv_s == pytest.approx(one.kv_s / 2)
    # 4 all-reduces of 8 numbers of 2 bytes; each GPU sends 2 x 1/2 of them, at 40% of 2.5 bytes/s
    assert two.exchange_s == pytest.approx(4 * 16 / 1.0)


@pytest.mark.parametrize(("name", "billions", "gigabytes"), [
    ("qwen3-8b", 8.19, 15.26), ("qwen3-14b", 14.77, 27.51), ("qwen3-32b", 32.76, 61.02),
])  # fmt: skip
def test_the_papers_models(name: str, billions: float, gigabytes: float) -> None:
    """The paper's table of transfers has their sizes in GB of 2**30 bytes."""
    shape = SHAPES[name]
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert roofline.weight_bytes(shape) / 2**30 == pytest.approx(gigabytes, rel=0.002)


def test_prefill_is_faster_on_compute_and_decoding_on_bandwidth() -> None:
    h800, h20 = (roofline.pace_of(SHAPES["qwen3-8b"], GPUS[name]) for name in ("h800", "h20"))
    (prefill, decode), (slow, fast) = (roofline.turn_s(pace, 8000, 0, 500, 8) for pace in (h800, h20))
    assert slow > 4 * prefill
    assert fast < decode


def test_a_cached_prefix_saves_its_prefill() -> None:
    pace = roofline.pace_of(SHAPES["qwen3-8b"], GPUS["h800"])
    whole, decode = roofline.turn_s(pace, 8000, 0, 100)
    rest, same = roofline.turn_s(pace, 8000, 7900, 100)
    assert rest < whole / 50
    assert decode == same


@given(st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0, 3e4))
def test_more_work_never_takes_less_time(decoding: float, kv: float, prefill: float, context: float) -> None:
    pace = Pace(1e-5, 2e-5, 1e-9, 5e-3, 1e-8, 1e-6, 4e-3)
    least = pace.iteration_s(decoding, kv, prefill, context)
    assert least >= pace.fixed_s + pace.weights_s
    more = ((decoding + 1, kv, prefill, context), (decoding, kv + 1, prefill, context))
    assert all(pace.iteration_s(*each) >= least for each in more)
    assert pace.iteration_s(decoding, kv, prefill + 1, context) >= least


def test_training_counts_matrices_and_attention() -> None:
    linear = 2 * 592 + 80
    assert roofline.training_flops(SMALL, [10, 20], 6) == 6 * (30 * linear + 500 * 2 * 8)


def test_kv_gets_what_weights_and_workspace_leave() -> None:
    shape, size = SHAPES["qwen3-8b"], EngineSize(tensor=1, item=2, prefill_tokens=8192, running=128)
    per_token = 2 * 36 * 8 * 128 * 2
    assert kv_token_bytes(shape, size) == per_token == roofline.kv_bytes(shape)
    room = 0.9 * 80 * 2**30
    assert kv_capacity(shape, size, room) == int((room - sum(engine_parts(shape, size).values())) / per_token)
    assert kv_capacity(shape, size, 1e9) == 0
