"""agents.json: where the agents of a run find its supervisor. Owns that file.

Every supervisor is a new epoch with keys of its own. The last one says that the run is over, so that agents which wait
for the next supervisor leave.
"""

from __future__ import annotations

from typing import NamedTuple

from rollart_hpc.files import read_json, write_json
from rollart_hpc.rundir import RunDir


class Address(NamedTuple):
    address: str  # tcp://HOST:PORT
    epoch: int
    is_over: bool  # no other supervisor follows, unless the run is resumed


def write_address(run: RunDir, address: str, epoch: int) -> None:
    write_json(run.agents, Address(address, epoch, False)._asdict())


def write_over(run: RunDir) -> None:
    """Nothing if the run has never had agents."""
    known = read_address(run)
    if known is not None:
        write_json(run.agents, known._replace(is_over=True)._asdict())


def read_address(run: RunDir) -> Address | None:
    """None if there has been no supervisor yet."""
    content = read_json(run.agents)
    return Address(**content) if content else None
