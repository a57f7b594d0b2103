"""How many turns per second the simulator plays on one core, when every engine is busy and turns wait. Prints nothing.

The cluster is that of a run file with more engines of 4 GPUs. Twice as many trajectories are admitted as engines have
credits, so the router always has a queue, as on a cluster that is bound by its engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import msgspec

from rollart_hpc.config.load import load_all
from rollart_hpc.errors import UserError
from rollart_hpc.estimate.shapes import SHAPES
from rollart_hpc.simulate.build import Case, build
from rollart_hpc.simulate.cluster import Cluster, Spec
from rollart_hpc.simulate.figures import no_garbage
from rollart_hpc.simulate.presets import FROZENLAKE, GAME
from rollart_hpc.simulate.workload import Workload

RUN, MODEL, GPUS = "qwen3-8b-h800-h20", "qwen3-8b", 4
_RUNNING = 16
_GROUP = 8
_SLICE_S = 5.0  # of virtual time between two looks at the clock


@dataclass(frozen=True)
class Row:
    engines: int
    gpus: int
    trajectories: int  # in progress at the end
    turns: int
    events: int
    cpu_s: float
    virtual_s: float

    @property
    def turns_per_s(self) -> float:
        return self.turns / self.cpu_s


def bench_simulate(sizes: tuple[int, ...], seconds: float, say: Callable[[str], None]) -> list[Row]:
    if min(sizes) < 1 or seconds <= 0:
        raise UserError("nothing would be simulated", "use 1 engine or more, and more than 0 seconds")
    rows = []
    for engines in sizes:
        rows.append(_measure(_saturated(engines), engines, seconds))
        say(f"  {engines:>5} engines  {rows[-1].turns_per_s:>8.0f} turns/s")
    return rows


def _saturated(engines: int) -> Spec:
    trajectories = 2 * engines * 2 * _RUNNING
    overrides = [
        f"pools.compute.engines={engines}", "pools.bandwidth.engines=0", f"pools.compute.tensor_parallel={GPUS}",
        f"engine.max_running={_RUNNING}", f"flow.groups_per_step={max(1, trajectories // 2 // _GROUP)}",
        f"flow.group_size={_GROUP}", "flow.redundancy=0", "flow.streaming=false", "env.slots=4096",
        f"env.workers={max(1, trajectories // 4096 + 1)}", "reward.workers=16",
    ]  # fmt: skip
    loaded = load_all(RUN, overrides, needs_model=False)
    for hardware in loaded.site.classes.values():
        hardware.max_nodes = 0
    many = replace(FROZENLAKE, reuse=1.0)
    workload = Workload("many short turns", {"frozenlake": many, "instructions": GAME})
    tasks = {"frozenlake": replace(loaded.config.tasks["frozenlake"], max_turns=100, affinity="any")}
    config = replace(loaded.config, tasks=tasks)
    return build(Case(config, loaded.site, workload, SHAPES[MODEL]), steps=1000)


def _measure(spec: Spec, engines: int, seconds: float) -> Row:
    """After every engine has its credits spent once."""
    cluster = Cluster(spec)
    with no_garbage():
        for _ in _slices(cluster):
            if cluster.turns >= 2 * _RUNNING * engines:
                break
        turns, events, virtual_s, began_s = cluster.turns, cluster.events, cluster.clock.now, time.process_time()
        for _ in _slices(cluster):
            if time.process_time() - began_s >= seconds:
                break
        cpu_s = time.process_time() - began_s
    return Row(
        engines,
        engines * GPUS,
        cluster.core.trajectories.num_playing,
        cluster.turns - turns,
        cluster.events - events,
        cpu_s,
        cluster.clock.now - virtual_s,
    )


def _slices(cluster: Cluster) -> Iterator[None]:
    until_s = cluster.clock.now
    while cluster.ended is None:
        until_s += _SLICE_S
        cluster.run(1000, until_s)
        yield


def table(rows: list[Row]) -> str:
    lines = [f"{'engines':>8}{'GPUs':>8}{'playing':>9}{'turns/s':>9}{'events/s':>10}{'us/turn':>9}{'virtual s':>11}"]
    for row in rows:
        lines.append(
            f"{row.engines:>8}{row.gpus:>8}{row.trajectories:>9}{row.turns_per_s:>9.0f}{row.events / row.cpu_s:>10.0f}"
            f"{1e6 / row.turns_per_s:>9.0f}{row.virtual_s:>11.0f}"
        )
    return "\n".join(lines)


def as_json(rows: list[Row]) -> str:
    found = [{**asdict(row), "turns_per_s": row.turns_per_s} for row in rows]
    return msgspec.json.format(msgspec.json.encode({"bench": "simulate", "rows": found})).decode()
