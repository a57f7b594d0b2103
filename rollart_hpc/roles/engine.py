"""An engine process: loads the architecture, joins, and generates once weights are installed."""

from __future__ import annotations

import logging
import os
import zlib
from typing import TYPE_CHECKING

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.processes.lifetime import end_with
from rollart_hpc.roles.start import Start, connect, data_address, run_role

if TYPE_CHECKING:
    from rollart_hpc.engines.contract import Engine

ENGINE_VARIABLE = "ROLLART_ENGINE"  # tells vLLM's processes whose they are


def capacity(config: EngineConfig) -> int:
    """Requests in flight: twice what runs at once keeps the engine fed while answers travel, if KV rows allow it."""
    return max(config.max_running, min(2 * config.max_running, config.kv_slots))


def make_engine(start: Start) -> Engine:
    config = start.config
    max_len = max(task.max_tokens for task in config.tasks.values())
    seed = zlib.crc32(f"{config.seed}/{start.name}/{start.incarnation}".encode())
    if config.engine.kind == "vllm":
        return _make_vllm(start, max_len, seed)
    from rollart_hpc.engines.torch.engine import TorchEngine

    return TorchEngine(start.run.model, config.engine, max_len, deterministic=config.deterministic, seed=seed)


def _make_vllm(start: Start, max_len: int, seed: int) -> Engine:
    from rollart_hpc.engines.vllm.engine import VllmEngine
    from rollart_hpc.engines.vllm.settings import VllmSetup
    from rollart_hpc.weights.store import NodeStore

    os.umask(0o077)  # what vLLM writes is as private as what we write
    os.environ[ENGINE_VARIABLE] = str(os.getpid())
    config, pools = start.config, start.config.pools
    setup = VllmSetup(
        model=start.run.model,
        config=config.engine,
        max_len=max_len,
        scratch=start.run.cache,
        tensor_parallel=pools[start.pool].tensor_parallel if start.pool in pools else 1,
        deterministic=config.deterministic,
        seed=seed,
        kv_directory=start.run.kv_directory if any(task.split for task in config.tasks.values()) else None,
        host=data_address(start),
    )
    return VllmEngine(setup, NodeStore(start.run.store_root, f"{start.node}.{start.name}"))


def main(start: Start) -> None:
    from rollart_hpc.engines.install import Preparer
    from rollart_hpc.engines.service import Service
    from rollart_hpc.weights.store import NodeStore
    from rollart_hpc.wire.wakeup import Wakeup

    config = start.config
    engine = make_engine(start)
    wakeup = Wakeup()
    store = NodeStore(start.run.store_root, start.node)
    preparer = Preparer(store, config.weights.deadline_s, engine.device, wakeup.set)
    link = connect(start, capacity=capacity(config.engine), num_ranks=engine.num_ranks)
    with Tracer(start.run.trace_part(start.attempt, start.name), start.name) as tracer:
        tracer.set_offset(link.clock_offset_s)
        try:
            Service(engine, link, preparer, wakeup, tracer).run()
        finally:
            engine.close()
            preparer.close()
            link.close()
    if preparer.is_busy():  # in a collective that the end of the run broke: gloo can't be interrupted, nobody waits
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    run_role("engine", main)
elif __name__ == "__mp_main__":  # a process of vLLM's: it would go on for ever without us
    end_with(int(os.environ[ENGINE_VARIABLE]))
