"""A site with a range of ports: nothing that stays open listens elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PORTS = range(61000, 61400)  # above those that Linux gives out by default
_LISTENS = "0A"


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def listening(pids: list[int]) -> dict[int, int]:
    """port -> process, for every TCP socket that one of them listens on."""
    ports = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS:
                ports[f"socket:[{fields[9]}]"] = int(fields[1].rsplit(":", 1)[1], 16)
    found = {}
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                inode = os.readlink(f"/proc/{pid}/fd/{name}")
                if inode in ports:
                    found[ports[inode]] = pid
        except OSError:
            continue
    return found


@pytest.mark.parametrize("transport", ["staged", "direct"])
def test_a_run_listens_only_in_the_range_of_its_site(run, tmp_path, transport):
    site = tmp_path / "site.yaml"
    site.write_text(f"network: {{ports: {PORTS.start}-{PORTS.stop - 1}}}\n")
    run.start(
        "--site", str(site), "trainer.ranks=2", f"weights.transport={transport}", "validation.plays=0", "steps=500"
    )
    run.until_step(1)
    owners: dict[int, int] = {}

    def has_published_again() -> bool:
        owners.update(listening(family(run.process.pid)))
        return len(run.steps()) >= 4

    run.until(has_published_again, "transfers of further versions")
    assert not [port for port in owners if port not in PORTS], owners
    expected = {run.pid(name) for name in ("controller", "trainer-0", "trainer-1")}
    assert expected <= set(owners.values()), "also what gloo opened"
