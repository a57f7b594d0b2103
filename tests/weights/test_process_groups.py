"""What becomes of a group when it closes. NCCL needs GPUs: a fake stands in for torch's process group."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rollart_hpc.weights import process_groups as groups
from rollart_hpc.weights.process_groups import RankSetup, TorchProcessGroup, TransferError

DEADLINE_S = 7.0


class FakeWork:
    def __init__(self, error: str = "") -> None:
        self.error = error

    def wait(self, timeout: timedelta) -> None:
        assert timeout == timedelta(seconds=DEADLINE_S)
        if self.error:
            raise RuntimeError(self.error)


class FakeNccl:
    """Records what is asked of it; `error`: what the next operation fails with."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error = ""

    def broadcast(self, tensor: torch.Tensor, root: int, timeout: timedelta) -> FakeWork:
        self.asked.append(f"broadcast from {root}")
        return FakeWork(self.error)

    def abort(self) -> None:
        self.asked.append("abort")

    def shutdown(self) -> None:
        self.asked.append("shutdown")


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    fake = FakeNccl()
    monkeypatch.setattr(groups, "_nccl", lambda store, setup: fake)
    monkeypatch.setattr(groups, "PrefixStore", lambda prefix, store: store)
    return fake


def make_group() -> TorchProcessGroup:
    store: Any = SimpleNamespace(secret="", close=lambda: None)
    return TorchProcessGroup(store, RankSetup(1, 2, "127.0.0.1", DEADLINE_S, torch.device("cuda")))


def test_a_transfer_that_went_well_ends_in_order(nccl: FakeNccl) -> None:
    with make_group() as group:
        group.broadcast(torch.zeros(1))
    group.close()
    assert nccl.asked == ["broadcast from 0", "shutdown"]


def test_one_that_breaks_is_aborted_for_all_at_once(nccl: FakeNccl) -> None:
    nccl.error = "[Rank 1] a peer is gone"
    with pytest.raises(TransferError, match="a peer is gone"), make_group() as group:
        group.broadcast(torch.zeros(1))
    assert nccl.asked == ["broadcast from 0", "abort"]
