"""The env worker's loop without processes and wire."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rollart_hpc.envs.host import Happened
from rollart_hpc.envs.service import Service
from rollart_hpc.wire.messages import Ended, Play, Stop
from tests.envs.hosting import make_task


class FailingHost:
    """Every reset raises."""

    def __init__(self) -> None:
        self.happened: list[Happened] = []

    def reset(self, slot: object, task: str, seed: int, trouble_seed: int) -> None:
        failed = Happened(
            slot, "failed", status="reset_failed", detail=f"KeyError: {seed}", trace="File user.py, line 7"
        )
        self.happened.append(failed)

    def release(self, slot: object) -> None: ...

    def wait_s(self) -> float:
        return 0.0

    def collect(self) -> list[Happened]:
        happened, self.happened = self.happened, []
        return happened


def test_the_traceback_of_a_failure_is_logged_once_for_each_task(caplog: pytest.LogCaptureFixture) -> None:
    plays = [Play(str(n), 1, task, n, sample_seed=1) for n, task in enumerate("aab")]
    link, selector = MagicMock(), MagicMock()
    link.recv.side_effect = [*((play, []) for play in plays), None, (Stop("done"), [])]
    selector.select.side_effect = lambda wait_s: [(SimpleNamespace(data=selector.register.call_args.args[2]), 1)]
    tasks = {"a": make_task(), "b": make_task()}
    service = Service(
        tasks,
        renderer=MagicMock(),
        host=FailingHost(),
        link=link,
        tracer=MagicMock(),
        selector=selector,  # type: ignore[arg-type]
    )
    service.run()
    ended = [call.args[0] for call in link.send.call_args_list]
    assert [(e.status, e.detail) for e in ended if isinstance(e, Ended)] == [
        ("reset_failed", f"KeyError: {n}") for n in range(3)
    ]
    traced = [record.getMessage() for record in caplog.records if "user.py, line 7" in record.getMessage()]
    assert [text.splitlines()[0] for text in traced] == [f"the first KeyError of task {task}:" for task in "ab"]
