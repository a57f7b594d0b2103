"""What goes wrong around the real controller, drawn from a seed, and what must hold nevertheless."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from rollart_hpc import __version__
from rollart_hpc.observe import ledger
from rollart_hpc.roles import checkpoints
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import identity_of
from tests.faults.controlled import SILENCE_S, TOKENS, Controlled, Proc, Say, arrays

UNTIL_S = 4000.0  # virtual; progress within this bound, whatever happens
STATUS_BYTES = 64 << 10
ROUNDS = 2000  # messages per trajectory that was admitted: more is a loop
SHARE = 2.0  # groups by which a task's part of the ledger may differ from its share
LONG = "x" * 200_000


class Spoiler:
    """Changes what workers say. Each kind of nonsense is one that brought something down before."""

    def __init__(self, world: Controlled, rng: random.Random) -> None:
        self.world, self.random = world, rng
        self.nonsense, self.duplicates = rng.choice([0.0, 0.04]), rng.choice([0.0, 0.05])
        self.forged = rng.choice([0, 0, 12])
        self.stubborn = rng.random() < 0.15  # an env worker that sends a prefix again, whatever it is asked

    def spoil(self, proc: Proc, say: Say) -> list[Say]:
        rng, world = self.random, self.world
        message, frames = say
        if self.stubborn and proc.name == "env-0" and isinstance(message, ms.TurnWanted) and message.turn:
            world.faults["bad prefix"] += 1
            return [(msgspec.structs.replace(message, full=False, prefix_tokens=6), [bytes(8)])]
        if self.duplicates and rng.random() < self.duplicates and not isinstance(message, ms.Hello):
            world.faults["late duplicate"] += 1
            life, attempt = proc.life, world.attempt

            def again() -> None:
                if proc.life == life and world.attempt == attempt and proc.is_up:
                    world.arrive(proc, message, list(frames))

            world.after(rng.expovariate(0.5), again)
        if rng.random() < self.nonsense:
            changed = self._changed(proc, message, frames)
            if changed is not None:
                world.faults["bad payload"] += 1
                return [changed]
        return [say]

    def _changed(self, proc: Proc, message: ms.Message, frames: list[bytes]) -> Say | None:
        rng, replace = self.random, msgspec.structs.replace
        match message:
            case ms.Generated():
                others = [name for name in self.world.core.trajectories.all if name != message.trajectory]
                other = replace(message, trajectory=rng.choice(others or ["x"]))
                return rng.choice([(other, frames), (message, []), (message, frames[:2]),
                                   (message, arrays([10**9] * TOKENS)), (message, [b"abc"] * 3)])  # fmt: skip
            case ms.Ended():
                many = replace(message, sample_lengths=[10**6])
                newer = [frames[0], *frames[1:3], arrays([10**9] * (len(frames[3]) // 4))[2]]
                older = [frames[0], *frames[1:3], arrays([0] * (len(frames[3]) // 4))[2]]
                return rng.choice([(message, []), (many, frames), (replace(message, sample_lengths=[]), frames),
                                   (message, newer), (message, older),
                                   (replace(message, status="\0odd"), frames)])  # fmt: skip
            case ms.TurnWanted():
                return rng.choice([(message, [b"abc"]), (message, []), (message, [*frames, b""])])
            case ms.Scored():
                return rng.choice([(replace(message, reward=float("nan")), frames),
                                   (replace(message, reward=float("inf")), frames)])  # fmt: skip
        return None

    def lie(self) -> None:
        """A process with a key of its own role says what it may not, or what nobody asked it."""
        rng, world = self.random, self.world
        alive = [proc for proc in world.procs.values() if proc.is_up and proc.role not in ("supervisor", "trainer")]
        if not alive or world.ended:
            return
        world.faults["forged"] += 1
        proc, version = rng.choice(alive), world.core.version
        lies: list[ms.Message] = [
            ms.Saved(world.core.saving or version, ""), ms.Committed(version, version + 1, "p", "forged", {}, 0.1, 0.1),
            ms.Drain("cancelled", True), ms.TrainerAttempt(world.attempt + 7), ms.BatchWanted(version),
            ms.Published(world.attempt, version + 3, 1, 0.1), ms.Exited("trainer", str(world.procs["trainer"].life), 1),
            ms.Held(world.attempt, version + 9, 1, 0.1), ms.Installed(world.attempt, version + 9, 1, 0.1, 0.1),
            ms.Generated(rng.randrange(50), "a", 1, 1), ms.Scored("a", 0, float("nan"), True, 0.1),
            ms.Hello("trainer", "trainer", "n", "", 1, __version__, world.attempt, "liar", 1, version=-1),
            ms.Hello("trainer", proc.name, "n", "", 1, __version__, world.attempt + 1, "liar", 1, version=0),
            ms.Hello(proc.role, "env-9", LONG[:20_000], "", 1, __version__, world.attempt, "1", 1),
            ms.Ended("a1.g0.m0", 0, "x" * 100_000, "", 1, 1, [1]),
            ms.Hello("engine", "engine-9", "n", "compute", 1, __version__, world.attempt, "1", 1, num_ranks=2**64 - 1),
        ]  # fmt: skip
        if world.said and rng.random() < 0.4:  # another's words
            _, (message, frames) = rng.choice(world.said)
            world.take(identity_of(proc.name, str(proc.life)), proc.role, [ms.encode(message), *frames])
            return
        if rng.random() < 0.1:  # somebody has the trainer's key
            attempt, ahead_by = rng.choice([(0, 5), (1, 0), (1, 5)])
            ahead = ms.Hello(
                "trainer", "trainer-9", "n", "", 1, __version__, world.serving + attempt, "1", 1,
                version=version + ahead_by,
            )  # fmt: skip
            world.take(identity_of("trainer-9", "1"), "trainer", [ms.encode(ahead)])
            return
        message = rng.choice(lies)
        name, incarnation = proc.name, str(proc.life)
        if isinstance(message, ms.Hello):
            name, incarnation = message.name, message.incarnation
        parts = [ms.encode(message), *(arrays([0]) if isinstance(message, ms.Generated) else [])]
        world.take(identity_of(name, incarnation), proc.role, parts)


def tear(world: Controlled, rng: random.Random) -> None:
    """What a crash, or a disk, does to files. Never to the only checkpoint."""
    found = world.run_dir.committed_checkpoints()
    if len(found) > 1 and rng.random() < 0.7:
        world.faults["torn file"] += 1
        path = found[-1].path / rng.choice([checkpoints.CORE, checkpoints.BUFFER])
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if rng.random() < 0.5 else content[:-1] + b"\0")
    if world.run_dir.ledger.exists() and rng.random() < 0.3:
        world.faults["torn file"] += 1
        with open(world.run_dir.ledger, "ab") as file:
            file.write(b'{"kind":"step","st')
    if world.run_dir.status.exists() and rng.random() < 0.3:
        world.run_dir.status.write_text('{"state')


class Disk:
    """Writing the controller's part of a checkpoint fails now and then."""

    def __init__(self, world: Controlled, rate: float) -> None:
        self.world, self.rate, self.real = world, rate, checkpoints.begin

    def begin(self, *arguments: Any) -> Path:
        if self.world.fails_to_save(self.rate):
            raise OSError(28, "No space left on device")
        return self.real(*arguments)


def schedule(world: Controlled, rng: random.Random, spoiler: Spoiler) -> None:
    workers = [name for name, proc in world.procs.items() if proc.role not in ("trainer", "supervisor")]
    victims = [*workers, "trainer"]

    def plan(most: int, last_s: float, what: str, act: Any) -> None:
        for _ in range(rng.randint(0, most)):
            world.after(rng.uniform(0.5, last_s), lambda: (world.faults.update([what]) if what else None, act()))

    def partition() -> None:
        proc = world.procs[rng.choice(workers)]
        if proc.is_up and not proc.cut:
            proc.cut, life = rng.choice(["to", "from"]), proc.life
            world.after(rng.choice([0.5, 5.0, 2 * SILENCE_S]), lambda: world.reconnect(proc, life))

    def hang() -> None:
        world.procs[rng.choice(workers)].is_hung = True

    def restart() -> None:
        tear(world, rng)
        world.restart_controller()

    def jump() -> None:
        world.now += rng.choice([6.0, 60.0, 1000.0])

    plan(3, 10.0, "kill", lambda: world.kill(rng.choice(victims), rng.uniform(0.01, 3.0)))
    plan(1, 10.0, "controller killed", restart)
    plan(2, 8.0, "partition", partition)
    plan(rng.choice([0, 0, 1]), 6.0, "hang", hang)
    plan(1, 8.0, "clock jump", jump)
    plan(spoiler.forged, 8.0, "", spoiler.lie)


# --- invariants ----------------------------------------------------------------------------------


def check_payloads(world: Controlled) -> None:
    """Payloads belong to trajectories that are there, and nothing grows."""
    payloads, alive = world.controller.payloads, world.core.trajectories.all
    kept = {*payloads.turns, *payloads.answers, *payloads.ended, *payloads.asked_again}
    orphans = kept - alive.keys() - set(world.controller._to_release)
    assert not orphans, f"payloads of {sorted(orphans)[:5]}, which are gone"
    flow = world.config.flow
    most = (1 + flow.alpha) * flow.groups_per_step * (flow.group_size + flow.redundancy)
    assert len(alive) <= most, f"{len(alive)} trajectories, at most {most} are admitted"


def check_credits(world: Controlled) -> None:
    core = world.core
    on_env = Counter(t.env for t in core.trajectories.all.values() if t.env)
    on_engine = Counter(t.server for t in core.trajectories.requests.values())
    for worker in core.workers.values():
        expected = {"env": on_env, "engine": on_engine}.get(worker.role)
        if expected is not None:
            assert worker.load == expected[worker.name], f"{worker.name} has load {worker.load}"
            assert worker.load <= worker.capacity, f"{worker.name} has load {worker.load} of {worker.capacity}"


def check_end(world: Controlled) -> None:
    flow, steps = world.config.flow, world.config.steps
    assert world.ended == RunState.FINISHED, (
        f"{world.ended or 'no progress'} at version {world.core.version}: {world.controller.journal._reason}"
    )
    problems = ledger.check(world.run_dir.ledger, flow.group_size, flow.alpha)
    assert not problems, problems[:3]
    chain = ledger.surviving(ledger.entries(world.run_dir.ledger))
    assert [line.version for line in chain] == list(range(1, steps + 1)), "exactly the steps asked for"
    assert chain[-1].digest == world.digest, "the ledger ends with the trainer's weights"
    assert world.run_dir.status.stat().st_size < STATUS_BYTES, "status.json grew"
    assert world.run_dir.metrics.stat().st_size < 40 * STATUS_BYTES, "metrics.jsonl grew"
    plays = sum(sum(c.values()) for c in [Counter(world.core.tally.dropped)]) + len(world.trained) + 50
    assert world.messages < ROUNDS * plays, f"{world.messages} messages"
    check_mix(world, {line.version: line.groups for line in chain})


def check_mix(world: Controlled, chain: dict[int, list[int]]) -> None:
    quarantined = [name for name, task in world.core.tally.tasks.items() if task.quarantined]
    assert not quarantined, f"{quarantined} quarantined without a fault of its own"
    tasks = {(step, item.group): item.task for step, item in world.trained}
    counts = Counter(tasks[version - 1, group] for version, groups in chain.items() for group in groups)
    total = sum(task.weight for task in world.config.tasks.values())
    for name, task in world.config.tasks.items():
        share = sum(counts.values()) * task.weight / total
        assert abs(counts[name] - share) <= SHARE, f"{counts[name]} groups of {name}, its share is {share:.1f}"


def controlled(directory: Path, seed: int) -> Controlled:
    """One run. Raises whatever the controller raises, and AssertionError if an invariant is broken."""
    shutil.rmtree(directory, ignore_errors=True)
    rng = random.Random(f"spoiling {seed}")
    world = Controlled(directory, seed)
    spoiler = Spoiler(world, rng)
    world.spoil = spoiler.spoil
    world.save_fails = rng.choice([0.0, 0.3])
    disk = Disk(world, rng.choice([0.0, 0.2]))
    schedule(world, rng, spoiler)
    world.on_tick += [check_payloads, check_credits]
    try:
        with mock.patch.object(checkpoints, "begin", disk.begin):
            world.run(UNTIL_S)
        check_end(world)
    finally:
        world.controller.journal.close()
    return world
