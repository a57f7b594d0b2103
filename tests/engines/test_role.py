"""An engine as a real process: joins, installs from shared memory, generates, ends on Stop."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import EngineConfig, PoolConfig, RunConfig, TaskConfig
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import TokenRecord, WeightsId
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire import keys
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.members import Joined, Members

PATIENCE_S = 120.0


class Star:
    """The controller's socket without a core."""

    def __init__(self, run: RunDir, attempt: int) -> None:
        self.hub = Hub("127.0.0.1", keys.load_server(run.keys(attempt)))
        self.members = Members(self.hub, attempt=attempt, heartbeat_s=0.5, silence_s=60.0)
        self.address = f"tcp://127.0.0.1:{self.hub.port}"

    def until(self, kind, process: subprocess.Popen[bytes]):
        """The next message or membership event of a kind."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and not process.poll():
            for name, message, frames in self.hub.poll(0.2):
                events = self.members.handle(name, message)
                for found in (*events, message):
                    if isinstance(found, kind):
                        return found, frames
        raise AssertionError(f"no {kind.__name__} came")


@pytest.fixture
def run(tmp_path, qwen) -> RunDir:
    run = RunDir(tmp_path / "run").create()
    task = TaskConfig(name="t", max_tokens=128, environment="x:Y", reward="x:y")
    pool = PoolConfig(speed=2.5, engine={"kv_slots": 6})
    engine = EngineConfig(max_running=4, kv_slots=99)
    write_resolved(run.config, RunConfig(tasks={"t": task}, engine=engine, pools={"fast": pool}))
    run.model.symlink_to(qwen.directory)
    keys.make_keys(run.keys(run.begin_attempt()))
    yield run
    run.remove_store()


def test_join_install_generate_stop(run, qwen, ids):
    attempt = run.last_attempt()
    star = Star(run, attempt)
    command = [sys.executable, "-m", "rollart_hpc.roles.engine", "--run-dir", str(run.path), "--name", "engine-0"]
    command += ["--attempt", str(attempt), "--address", star.address, "--node", "here", "--pool", "fast"]
    process = subprocess.Popen(command)
    try:
        joined, _ = star.until(Joined, process)
        assert (joined.hello.role, joined.hello.pool, joined.hello.capacity) == ("engine", "fast", 6)
        assert (joined.hello.kv_tokens, joined.hello.speed) == (6 * 128, 2.5)
        NodeStore(run.store_root, "here").write(WeightsId(attempt, 2), qwen.named(2), 1 << 20)
        star.hub.send("engine-0", ms.Install(attempt, 2))
        installed, _ = star.until(ms.Installed, process)
        assert installed.version == 2
        prompt = ids(1, 9)
        star.hub.send("engine-0", ms.Generate(5, "a", 0, 0, True, 7, 1.0, 0), prompt.tobytes())
        generated, frames = star.until(ms.Generated, process)
        record = TokenRecord.from_frames(frames)
        assert generated.request == 5 and len(record) == generated.num_decode_tokens > 0
        expected = qwen.logprobs(2, np.concatenate([prompt, record.ids]))[len(prompt) - 1 : -1]
        np.testing.assert_allclose(record.logprobs, expected[np.arange(len(record)), record.ids], atol=1e-4)
        star.hub.send("engine-0", ms.Stop("done"))
        star.until(ms.Bye, process)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        star.hub.close()
    assert run.trace_part(attempt, "engine-0").stat().st_size > 0
