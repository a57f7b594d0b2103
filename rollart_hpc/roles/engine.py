"""An engine process: loads the architecture, joins, and generates once weights are installed."""

from __future__ import annotations

import logging
import os
import zlib

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.roles.start import Start, connect, run_role


def capacity(config: EngineConfig) -> int:
    """Requests in flight: twice what runs at once keeps the engine fed while answers travel, if KV rows allow it."""
    return max(config.max_running, min(2 * config.max_running, config.kv_slots))


def main(start: Start) -> None:
    from rollart_hpc.engines.install import Preparer
    from rollart_hpc.engines.service import Service
    from rollart_hpc.engines.torch_engine import TorchEngine
    from rollart_hpc.weights.store import NodeStore
    from rollart_hpc.wire.wakeup import Wakeup

    config = start.config
    engine = TorchEngine(
        start.run.model,
        config.engine,
        max_len=max(task.max_tokens for task in config.tasks.values()),
        deterministic=config.deterministic,
        seed=zlib.crc32(f"{config.seed}/{start.name}/{start.incarnation}".encode()),
    )
    wakeup = Wakeup()
    store = NodeStore(start.run.store_root, start.node)
    preparer = Preparer(store, config.weights.deadline_s, engine.device, wakeup.set)
    link = connect(start, capacity=capacity(config.engine))
    with Tracer(start.run.trace_part(start.attempt, start.name), start.name) as tracer:
        tracer.set_offset(link.clock_offset_s)
        try:
            Service(engine, link, preparer, wakeup, tracer).run()
        finally:
            preparer.close()
            link.close()
    if preparer.is_busy():  # in a collective that the end of the run broke: gloo can't be interrupted, nobody waits
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    run_role("engine", main)
