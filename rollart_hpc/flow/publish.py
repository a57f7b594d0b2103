"""How a new version reaches the engines. Owns what each relay holds and each engine has installed.

staged:  Published -> Adopt (relay of the trainer's node) -> Held -> transfer to the other relays -> Held
         -> Install on each engine as soon as its node's relay holds the version.
direct:  Published -> transfer from the trainer into all engines that lack it -> Installed.

Publishing is no barrier: an engine's version is what it acknowledged. A broken transfer is formed
again, under a new epoch, with whoever is alive at the next tick. A relay whose copy turns out bad gets a new one from
another relay, else from the trainer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.pace import Pace
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import Tally, Worker
from rollart_hpc.types import WeightsId

PATIENCE_S = 10.0  # minimum time for which up-to-date engines leave the others their share
IDLE_PATIENCE_S = 600.0  # the same if engines install only when idle


@dataclass(slots=True)
class Transfer:
    epoch: int
    weights: WeightsId
    source: str
    targets: list[str]
    open: set[str] = field(default_factory=set)  # targets that have not answered

    def involves(self, name: str) -> bool:
        return name == self.source or name in self.open or name in self.targets


class Node:
    """The relays and engines that share a node's memory."""

    def __init__(self) -> None:
        self.relays: dict[str, Worker] = {}
        self.engines: dict[str, Worker] = {}

    def of(self, role: str) -> dict[str, Worker]:
        return self.relays if role == "relay" else self.engines


class Publisher:
    def __init__(
        self,
        rules: FlowRules,
        tally: Tally,
        workers: dict[str, Worker],
        emit: Callable[[ev.Command], None],
        may_install: Callable[[Worker], bool],
        should_install: Callable[[Worker], bool],
        changed: Callable[[Worker], None],
        pace: Pace,
    ) -> None:
        self.rules = rules
        self.tally = tally
        self.workers = workers
        self.newest: WeightsId | None = None
        self.trainer: Worker | None = None
        self.transfer: Transfer | None = None
        self.patient_until_s = 0.0
        self._now = 0.0
        self._published_s = 0.0
        self._epoch = 0  # 0 is no transfer: a relay reports a failed adoption under it
        self._nodes: defaultdict[str, Node] = defaultdict(Node)
        self._holders: dict[str, Worker] = {}  # relays with the newest version
        self._lacking_relays: dict[str, Worker] = {}
        self._lacking_engines: dict[str, Worker] = {}
        self._to_retry: dict[str, Worker] = {}  # engines whose install failed
        self._num_engines = 0
        self._spoiled: set[str] = set()  # relays whose copy of the newest version is bad or missing
        self._must_publish = False
        self._emit = emit
        self._may_install = may_install
        self._should_install = should_install
        self._changed = changed
        self._pace = pace

    # --- events ------------------------------------------------------------------------------

    def published(self, weights: WeightsId) -> None:
        self.newest = weights
        self._published_s = self._now
        relays = [relay for node in self._nodes.values() for relay in node.relays.values()]
        engines = [engine for node in self._nodes.values() for engine in node.engines.values()]
        self._holders = {relay.name: relay for relay in relays if relay.held == weights}
        self._lacking_relays = {relay.name: relay for relay in relays if relay.held != weights}
        self._lacking_engines = {engine.name: engine for engine in engines if engine.installed != weights}
        self._adopt(relays)
        self._advance(engines if self._holders else ())

    def restored(self) -> None:
        """The trainer was rolled back. All copies of the weights are invalid."""
        self.newest = None
        self.transfer = None
        self._holders, self._lacking_relays, self._lacking_engines = {}, {}, {}
        for worker in self.workers.values():
            worker.held = None
            worker.installing = None
            worker.asked_s = worker.asked_for = None

    def joined(self, worker: Worker) -> None:
        if worker.role not in ("relay", "engine"):
            return
        self._nodes[worker.node].of(worker.role)[worker.name] = worker
        if worker.role == "relay":
            self._lacking_relays[worker.name] = worker
            self._adopt([worker])
            self._advance(())
        else:
            self._num_engines += 1
            self._lacking_engines[worker.name] = worker
            self._advance((worker,))

    def lost(self, worker: Worker) -> None:
        if worker.role in ("relay", "engine"):
            self._nodes[worker.node].of(worker.role).pop(worker.name, None)
            self._num_engines -= worker.role == "engine"
            for index in (self._holders, self._lacking_relays, self._lacking_engines, self._to_retry):
                index.pop(worker.name, None)
        if self.transfer and self.transfer.involves(worker.name):
            self.failed(self.transfer.epoch)

    def held(self, relay: Worker, weights: WeightsId) -> None:
        self._spoiled.discard(relay.name)
        self.paid(relay.name, weights, is_good=True)
        relay.held = max(relay.held or weights, weights)
        self._answered(relay.name, weights)
        if relay.held == self.newest:
            self._lacking_relays.pop(relay.name, None)
            self._holders[relay.name] = relay
        self._advance(list(self._nodes[relay.node].engines.values()))

    def ready(self, epoch: int, host: str, port: int, secret: str) -> None:
        transfer = self.transfer
        if transfer is None or transfer.epoch != epoch:
            return
        self.paid(transfer.source)
        rank, size = 1, self._size(transfer.targets)
        transfer.open.update(transfer.targets)  # all answer now, also one whose late answer to an earlier ask came
        for name in transfer.targets:
            target = self.workers[name]
            if self.rules.direct:
                self._begin_install(target, transfer.weights)
            self._emit(ev.JoinTransfer(name, epoch, transfer.weights, rank, size, host, port, secret))
            rank += target.num_ranks
            self._owes(target, transfer.weights)

    def spoiled(self, relay: Worker) -> None:
        """The relay's copy is bad or missing. Another relay sends one, or the trainer publishes again."""
        relay.held = None
        self._holders.pop(relay.name, None)
        self._lacking_relays[relay.name] = relay
        self._spoiled.add(relay.name)
        self._must_publish = True
        self.tally.transfer_failures += 1

    def failed(self, epoch: int) -> None:
        """The next tick forms the collective again."""
        if self.transfer and self.transfer.epoch == epoch:
            for name in self.transfer.targets:
                if name in self.workers:
                    self._end_install(self.workers[name])
            self.transfer = None
            self.tally.transfer_failures += 1

    def installed(self, engine: Worker, weights: WeightsId) -> None:
        engine.installed = weights
        self.paid(engine.name, weights, is_good=True)
        if engine.installing == weights:
            engine.installing = None
        self.tally.installs += 1
        self._answered(engine.name, weights)
        if weights == self.newest:
            if len(self._lacking_engines) == self._num_engines:
                self._be_patient()
            self._lacking_engines.pop(engine.name, None)
        self._changed(engine)
        self._advance((engine,))

    def install_failed(self, engine: Worker, weights: WeightsId) -> None:
        """The next tick tries again."""
        self.paid(engine.name, weights)
        if engine.installing == weights:
            self._end_install(engine)
        self._to_retry[engine.name] = engine
        self.tally.transfer_failures += 1
        for relay in self._nodes[engine.node].relays.values():
            if relay.held == weights:
                self._emit(ev.Adopt(relay.name, weights))  # makes the relay verify its copy
                self._owes(relay, weights)

    def paid(self, name: str, weights: WeightsId | None = None, *, epoch: int = 0, is_good: bool = False) -> None:
        """This engine or relay answered, so it is not stuck. Good answers say how long the work takes.

        An answer about older `weights`, or about the transfer `epoch` that has been replaced, pays for nothing: what
        was asked for since then is still owed.
        """
        worker = self.workers.get(name)
        if worker is None or worker.asked_s is None:
            return
        asked_s, worker.moved_s = worker.asked_s, self._now
        if self._is_older(worker, weights, epoch):
            worker.asked_s = self._now
            return
        if is_good:
            self._pace.top = max(self._pace.top, self._now - asked_s)
        worker.asked_s = worker.asked_for = None

    def _is_older(self, worker: Worker, weights: WeightsId | None, epoch: int) -> bool:
        if weights is not None and worker.asked_for is not None:
            return weights < worker.asked_for
        now = self.transfer
        return now is not None and 0 < epoch < now.epoch and now.involves(worker.name)

    def _owes(self, worker: Worker, weights: WeightsId) -> None:
        """Since the first request that it has not answered: a collective that it broke is formed again with it."""
        worker.asked_for = max(worker.asked_for or weights, weights)
        if worker.asked_s is None:
            worker.asked_s = self._now

    def is_idle(self, engine: Worker) -> None:
        """The engine holds no trajectories, so it can install if it was waiting for that."""
        if not self.rules.direct:
            self._install_if_possible(engine)

    def look_again(self) -> None:
        """Engines that had to wait may install now."""
        self._advance(list(self._lacking_engines.values()))

    def tick(self, now: float) -> None:
        self._now = now
        if self._must_publish:
            self._must_publish = False
            self._publish_again()
        retry, self._to_retry = self._to_retry, {}
        self._advance(retry.values())

    # --- moving on ---------------------------------------------------------------------------

    def _be_patient(self) -> None:
        """The first engine installed a version. Keep the share of the others for a while: they will follow soon."""
        usual_s = max(PATIENCE_S, 2 * (self._now - self._published_s))
        self.patient_until_s = self._now + (IDLE_PATIENCE_S if self.rules.install_idle else usual_s)

    def _publish_again(self) -> None:
        if self.newest is not None and self.trainer is not None and not self._holders:
            self._emit(ev.PublishAgain(self.trainer.name, self.newest))

    def _advance(self, engines: Iterable[Worker]) -> None:
        """Start the transfer that is possible now, and the installs of these engines."""
        if self.newest is None:
            return
        if self.rules.direct:
            self._offer_to_engines(self.newest)
            return
        self._offer_to_relays(self.newest)
        for engine in engines:
            self._install_if_possible(engine)

    def _adopt(self, relays: Iterable[Worker]) -> None:
        if self.rules.direct or self.newest is None or self.trainer is None:
            return
        for relay in relays:
            if relay.node == self.trainer.node and relay.held != self.newest:
                self._emit(ev.Adopt(relay.name, self.newest))
                self._owes(relay, self.newest)

    def _offer_to_relays(self, newest: WeightsId) -> None:
        if self.transfer is not None or not self._holders or not self._lacking_relays:
            return
        own_node = self.trainer.node if self.trainer else ""
        lacking = [r.name for r in self._lacking_relays.values() if r.node != own_node or r.name in self._spoiled]
        if lacking:
            self._offer(next(iter(self._holders)), newest, lacking)

    def _offer_to_engines(self, newest: WeightsId) -> None:
        if self.transfer is not None or self.trainer is None:
            return
        lacking = [e for e in self._lacking_engines.values() if e.installing is None and self._should_install(e)]
        if lacking and all(self._may_install(e) for e in lacking):
            self._offer(self.trainer.name, newest, [e.name for e in lacking])

    def _install_if_possible(self, engine: Worker) -> None:
        newest = self.newest
        if newest is None or engine.installed == newest or engine.installing is not None:
            return
        is_held = any(name in self._holders for name in self._nodes[engine.node].relays)
        if is_held and self._should_install(engine) and self._may_install(engine):
            self._begin_install(engine, newest)
            self._emit(ev.Install(engine.name, newest))
            self._owes(engine, newest)

    def _begin_install(self, engine: Worker, weights: WeightsId) -> None:
        engine.installing = weights
        self._changed(engine)

    def _end_install(self, engine: Worker) -> None:
        engine.installing = None
        self._changed(engine)

    def _offer(self, source: str, weights: WeightsId, targets: list[str]) -> None:
        self._epoch += 1
        self.transfer = Transfer(self._epoch, weights, source, targets, set(targets))
        self.tally.transfers += 1
        self._emit(ev.OfferTransfer(source, self._epoch, weights, self._size(targets)))
        self._owes(self.workers[source], weights)

    def _size(self, targets: list[str]) -> int:
        """Number of ranks in a transfer: the source plus the ranks of every target."""
        return 1 + sum(self.workers[name].num_ranks for name in targets)

    def _answered(self, name: str, weights: WeightsId) -> None:
        transfer = self.transfer
        if transfer is not None and transfer.weights == weights:
            transfer.open.discard(name)
            if not transfer.open:
                self.transfer = None
