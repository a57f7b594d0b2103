"""An engine process: loads the architecture, joins the run, and generates once weights are installed."""

from __future__ import annotations

import logging
import os
import zlib
from typing import TYPE_CHECKING

from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import EngineConfig, PoolConfig
from rollart_hpc.processes.lifetime import end_with
from rollart_hpc.roles.start import Start, connect, data_address, open_trace, run_role

if TYPE_CHECKING:
    from rollart_hpc.engines.contract import EngineSetup

ENGINE_VARIABLE = "ROLLART_ENGINE"  # pid of the engine, for processes that the backend spawns


def capacity(config: EngineConfig) -> int:
    """Maximum requests in flight: twice `max_running` keeps the engine busy while answers travel, if KV allows."""
    return max(config.max_running, min(2 * config.max_running, config.kv_slots))


def setup_of(start: Start) -> EngineSetup:
    from rollart_hpc.engines.contract import EngineSetup

    config = start.config
    return EngineSetup(
        model=start.run.model,
        config=engine_of(config, start.pool),
        max_len=max(task.max_tokens for task in config.tasks.values()),
        scratch=start.run.cache,
        store=start.run.store_root,
        inbox=f"{start.node}.{start.name}",
        tensor_parallel=config.pools.get(start.pool, PoolConfig()).tensor_parallel,
        deterministic=config.deterministic,
        seed=zlib.crc32(f"{config.seed}/{start.name}/{start.incarnation}".encode()),
        kv_directory=start.run.kv_directory if any(task.split for task in config.tasks.values()) else None,
        host=data_address(start),
    )


def main(start: Start) -> None:
    from rollart_hpc.engines.install import Preparer
    from rollart_hpc.engines.kinds import make_engine
    from rollart_hpc.engines.service import Service
    from rollart_hpc.weights.store import NodeStore
    from rollart_hpc.wire.wakeup import Wakeup

    config = start.config
    os.environ[ENGINE_VARIABLE] = str(os.getpid())
    engine = make_engine(setup_of(start))
    wakeup = Wakeup()
    store = NodeStore(start.run.store_root, start.node)
    preparer = Preparer(store, config.weights.deadline_s, engine.device, wakeup.set)
    pool = config.pools.get(start.pool, PoolConfig())
    link = connect(
        start,
        capacity=capacity(engine_of(config, start.pool)),
        num_ranks=engine.num_ranks,
        kv_tokens=engine.kv_tokens,
        speed=pool.speed,
    )
    with open_trace(start) as tracer:
        tracer.set_offset(link.clock_offset_s)
        try:
            Service(engine, link, preparer, wakeup, tracer).run()
        finally:
            engine.close()
            preparer.close()
            link.close()
    if preparer.is_busy():  # in a collective that can't complete anymore; gloo can't be interrupted
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    run_role("engine", main)
elif __name__ == "__mp_main__":  # spawned by the backend: without us it would run forever
    end_with(int(os.environ[ENGINE_VARIABLE]))
