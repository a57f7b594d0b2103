from __future__ import annotations

from itertools import pairwise

import pytest

from rollart_hpc.config.schema import TrainerConfig
from rollart_hpc.trainers.schedule import learning_rate


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_warms_up_and_ends_where_it_should(schedule: str) -> None:
    trainer = TrainerConfig(lr=1.0, warmup_steps=4, schedule=schedule, min_lr_ratio=0.1)
    rates = [learning_rate(trainer, step, 20) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(b <= a for a, b in pairwise(rates[4:]))
    assert rates[20] == rates[24] == pytest.approx(1.0 if schedule == "constant" else 0.1)
