"""A rank of the trainer: meets the others, loads the weights, joins the run, and trains on what it receives."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollart_hpc import checkpoint_dirs
from rollart_hpc.errors import DamagedError
from rollart_hpc.roles.start import Start, connect, data_address, open_trace, run_role
from rollart_hpc.wire.link import Link

if TYPE_CHECKING:
    from rollart_hpc.trainers.contract import Trainer
    from rollart_hpc.trainers.publish import Publisher
    from rollart_hpc.trainers.recording import Recorder
    from rollart_hpc.trainers.world import World


def main(start: Start) -> None:
    from rollart_hpc.trainers.kinds import make_trainer
    from rollart_hpc.trainers.service import PART, Follower, Leader
    from rollart_hpc.trainers.world import open_world, rank_errors, set_up_cpu

    host = data_address(start)
    set_up_cpu(start.config.trainer.threads)
    rendezvous = start.run.trainer_rendezvous(start.attempt)
    world = open_world(
        start.rank, start.ranks, start.config.trainer.device, rendezvous, host, local_rank=start.local_rank
    )
    with rank_errors(), open_trace(start) as tracer:
        trainer = make_trainer(start.config, start.run.model, world)
        if start.checkpoint is not None:
            load(trainer, start.checkpoint, PART)
        is_leader = start.rank == 0
        link = connect(start, capacity=int(is_leader), version=trainer.version)
        publisher = make_publisher(start, host, link, world)
        try:
            if is_leader:
                recorder = make_recorder(start)
                try:
                    Leader(trainer, world, link, publisher, tracer, attempt=start.attempt, recorder=recorder).run()
                finally:
                    recorder.close()
            else:
                Follower(trainer, world).run()
        finally:
            link.close()
    world.close()
    if publisher.is_sending():  # to engines that have stopped too; gloo can't be interrupted
        logging.shutdown()
        os._exit(0)


def make_recorder(start: Start) -> Recorder:
    from rollart_hpc.trainers.recording import Recorder

    return Recorder(start.run, start.config.observe, f"{start.name}-{start.incarnation[:8]}", start.attempt)


def load(trainer: Trainer, checkpoint: Path, part: str) -> None:
    """A damaged checkpoint is set aside by the rank that found the damage: the next attempt takes the one before it."""
    try:
        trainer.load(checkpoint / part)
    except DamagedError as error:
        checkpoint_dirs.set_aside(checkpoint, error.what)
        raise


def make_publisher(start: Start, host: str, link: Link, world: World) -> Publisher:
    from rollart_hpc.trainers.publish import Direct, Staged
    from rollart_hpc.weights.direct import DirectSource
    from rollart_hpc.weights.store import NodeStore

    weights = start.config.weights
    if weights.transport == "staged":
        return Staged(NodeStore(start.run.store_root, start.node), weights.bucket_bytes)
    source = DirectSource(
        host, bucket_bytes=weights.bucket_bytes, deadline_s=weights.deadline_s, report=link.send, device=world.device
    )
    return Direct(source, link.send)


if __name__ == "__main__":
    run_role("trainer", main)
