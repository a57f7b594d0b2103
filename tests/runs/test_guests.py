"""A live run meets others: workers that join it, readers, strangers at its door, and a disk that someone else fills."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zmq

from rollart_hpc.observe import ledger
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import load_client
from tests.runs.test_failures import SLOWLY

pytestmark = pytest.mark.slow

END_S = 120
DISK_BYTES = 12 << 20


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rollart_hpc.cli", *map(str, arguments)]


@contextlib.contextmanager
def started(output: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command of the user in a terminal of its own; what it says goes to `output`."""
    with output.open("w") as file:
        process = subprocess.Popen(command(*arguments), stdout=file, stderr=subprocess.STDOUT, text=True, cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def joined(run, role):
    return json.loads((run.directory / "status.json").read_text())["workers"].get(role, {}).get("joined", 0)


def refused(run):
    return json.loads((run.directory / "status.json").read_text())["refused"]


def until_refused(run, counter, before):
    run.until(lambda: refused(run).get(counter, 0) > before.get(counter, 0), f"a stranger counted as {counter}")


def knock(address, **keys):
    """A ZeroMQ client that is not of this run sends something; it is never answered."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.reconnect_ivl = -1
        for key, value in keys.items():
            setattr(dealer, key, value)
        dealer.connect(address)
        dealer.send(b"let me in")
        assert not dealer.poll(1000)


def check_that_strangers_are_refused(run):
    address = json.loads((run.directory / "attempts" / "attempt_1" / "controller.json").read_text())["address"]
    place = urlsplit(address)

    before = refused(run)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\xff" * 64):
        with socket.create_connection((place.hostname, place.port), timeout=END_S) as stranger:
            stranger.sendall(garbage)
    until_refused(run, "disconnects", before)

    before = refused(run)
    knock(address)
    until_refused(run, "refused_handshakes", before)

    before = refused(run)
    public, secret = zmq.curve_keypair()
    server = load_client(RunDir(run.directory).keys(1), "env").server_public.encode()
    knock(address, curve_publickey=public, curve_secretkey=secret, curve_serverkey=server)
    until_refused(run, "refused_handshakes", before)


def test_workers_join_a_live_run_readers_follow_it_and_strangers_are_refused(run, tmp_path):
    def said(name):
        return (tmp_path / f"{name}.out").read_text()

    run.start("steps=20000", "validation.plays=0", *SLOWLY)  # the test ends it
    run.until_step(1)
    run.until(lambda: (joined(run, "env"), joined(run, "engine")) == (2, 2), "all env workers and engines")
    with (
        started(tmp_path / "env.out", "join", run.directory, "env") as env,
        started(tmp_path / "engine.out", "join", run.directory, "engine", "--pool", "compute") as engine,
        started(tmp_path / "logs.out", "logs", run.directory, "-f") as logs,
    ):
        guests = {"env": env, "engine": engine, "logs": logs}
        run.until(lambda: (joined(run, "env"), joined(run, "engine")) == (3, 3), "both guests have joined")
        check_that_strangers_are_refused(run)
        run.until_step(len(run.steps()) + 2)
        run.until(lambda: "joining" in said("env") and "refused" in said("logs"), "what the guests say")
        before = said("logs")
        assert all(guest.poll() is None for guest in guests.values()), {name: said(name) for name in guests}

        subprocess.run(command("cancel", run.directory), check=True, timeout=120, capture_output=True)
        assert run.process.wait(timeout=END_S) == 5
        for name, guest in guests.items():
            assert guest.wait(timeout=END_S) == 0, (name, said(name))
        assert said("logs").startswith(before) and "Traceback" not in said("logs") + said("env"), said("env")

    status = run.status()
    assert status["state"] == "drained" and status["attempt"] == 1
    assert all(status["workers"][role]["joined"] == 3 for role in ("env", "engine"))
    assert all(workers["lost"] == 0 for role, workers in status["workers"].items() if role != "supervisor"), status
    for name, spans in {"env": ("environment",), "engine": ("weights", "decode")}.items():
        (trace,) = (run.directory / "attempts" / "attempt_1" / "trace").glob(f"{name}-*join-*.jsonl")
        assert all(f'"{span}' in trace.read_text() for span in spans), f"{name} has joined but did not work"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED: a disk that fills in mid-run needs the right to mount one: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(path: Path) -> None:
    """To the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_disk_that_fills_in_mid_run_ends_it_clearly_and_loses_nothing(run, small_disk):
    steps = 12
    run.directory = small_disk / "run"
    run.start("mode=sync_plus", f"steps={steps}", "validation.plays=0", "checkpoint.every=1")
    run.until(lambda: RunDir(run.directory).newest_checkpoint() is not None, "a checkpoint")
    filler = small_disk / "filler"
    fill(filler)
    output, _ = run.process.communicate(timeout=END_S)
    assert run.process.returncode == 3, output + run.logs()
    assert "No space left on device" in output or "no space left" in output, output
    assert "Traceback" not in output, output

    filler.unlink()
    kept = RunDir(run.directory).newest_checkpoint()
    assert kept is not None and 1 <= kept.step < steps
    run.resume().wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == steps and status["attempt"] == 2
    lines = ledger.read(run.directory / "ledger.jsonl")
    assert [line.version for line in ledger.surviving(lines)] == list(range(1, steps + 1))
    assert min(line.version for line in lines if line.attempt == 2) == kept.step + 1, "it began at that checkpoint"
    assert not ledger.problems(lines, group_size=2, alpha=1)
