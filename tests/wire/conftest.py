from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollart_hpc.wire.keys import new_keys
from tests.wire.star import Controller


@pytest.fixture
def controller() -> Iterator[Controller]:
    running = Controller(*new_keys())
    yield running
    running.close()
