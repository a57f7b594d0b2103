"""How a new version reaches the engines. Owns what each relay holds and each engine has installed.

staged:  Published -> Adopt (relay of the trainer's node) -> Held -> transfer to the other relays -> Held
         -> Install on each engine as soon as its node's relay holds the version.
direct:  Published -> transfer from the trainer into all engines that lack it -> Installed.

Publishing is no barrier: an engine's version is what it acknowledged. A broken transfer is formed
again, under a new epoch, with whoever is alive at the next tick. A relay whose copy turns out bad gets a new one from
another relay, else from the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.policy import Policy
from rollart_hpc.flow.state import Tally, Worker
from rollart_hpc.types import WeightsId


@dataclass(slots=True)
class Transfer:
    epoch: int
    weights: WeightsId
    source: str
    targets: list[str]
    open: set[str] = field(default_factory=set)  # targets that have not answered


class Publisher:
    def __init__(
        self,
        policy: Policy,
        tally: Tally,
        workers: dict[str, Worker],
        emit: Callable[[ev.Command], None],
        may_install: Callable[[Worker], bool],
    ) -> None:
        self.policy = policy
        self.tally = tally
        self.workers = workers
        self.newest: WeightsId | None = None
        self.trainer: Worker | None = None
        self.transfer: Transfer | None = None
        self._epoch = 0  # 0 is no transfer: a relay reports a failed adoption under it
        self._spoiled: set[str] = set()  # relays whose copy of the newest version is bad or missing
        self._must_publish = False
        self._emit = emit
        self._may_install = may_install

    def published(self, weights: WeightsId) -> None:
        self.newest = weights
        self._adopt()
        self.advance()

    def restored(self) -> None:
        """The trainer fell back: nothing that anyone holds is the run's weights any more."""
        self.newest = None
        self.transfer = None
        for worker in self.workers.values():
            worker.held = None
            worker.installing = None

    def joined(self, worker: Worker) -> None:
        if worker.role == "relay":
            self._adopt()
        self.advance()

    def lost(self, worker: Worker) -> None:
        transfer = self.transfer
        if transfer and worker.name in (transfer.source, *transfer.targets):
            self.failed(transfer.epoch)

    def held(self, relay: Worker, weights: WeightsId) -> None:
        self._spoiled.discard(relay.name)
        relay.held = max(relay.held or weights, weights)
        self._answered(relay.name, weights)
        self.advance()

    def ready(self, epoch: int, host: str, port: int) -> None:
        transfer = self.transfer
        if transfer is None or transfer.epoch != epoch:
            return
        rank, size = 1, self._size(transfer.targets)
        for name in transfer.targets:
            if self.policy.direct:
                self.workers[name].installing = transfer.weights
            self._emit(ev.JoinTransfer(name, epoch, transfer.weights, rank, size, host, port))
            rank += self.workers[name].num_ranks

    def spoiled(self, relay: Worker) -> None:
        """Its copy is bad or missing: another relay sends it one, or the trainer publishes again if none has one."""
        relay.held = None
        self._spoiled.add(relay.name)
        self._must_publish = True
        self.tally.transfer_failures += 1

    def failed(self, epoch: int) -> None:
        """The next tick forms the collective again."""
        if self.transfer and self.transfer.epoch == epoch:
            for name in self.transfer.targets:
                if name in self.workers:
                    self.workers[name].installing = None
            self.transfer = None
            self.tally.transfer_failures += 1

    def installed(self, engine: Worker, weights: WeightsId) -> None:
        engine.installed = weights
        if engine.installing == weights:
            engine.installing = None
        self.tally.installs += 1
        self._answered(engine.name, weights)
        self.advance()

    def install_failed(self, engine: Worker, weights: WeightsId) -> None:
        if engine.installing == weights:
            engine.installing = None
        self.tally.transfer_failures += 1
        for relay in self._by_role("relay"):
            if relay.node == engine.node and relay.held == weights:
                self._emit(ev.Adopt(relay.name, weights))  # let it look whether its copy is still good

    def retry(self) -> None:
        if self._must_publish:
            self._must_publish = False
            self._publish_again()
        self.advance()

    def _publish_again(self) -> None:
        is_held = any(relay.held == self.newest for relay in self._by_role("relay"))
        if self.newest is not None and self.trainer is not None and not is_held:
            self._emit(ev.PublishAgain(self.trainer.name, self.newest))

    def advance(self) -> None:
        """Start whatever transfer or install is possible now."""
        if self.newest is None:
            return
        if self.policy.direct:
            self._advance_direct(self.newest)
        else:
            self._advance_staged(self.newest)

    def _adopt(self) -> None:
        if self.policy.direct or self.newest is None or self.trainer is None:
            return
        for relay in self._by_role("relay"):
            if relay.node == self.trainer.node and relay.held != self.newest:
                self._emit(ev.Adopt(relay.name, self.newest))

    def _advance_staged(self, newest: WeightsId) -> None:
        relays = self._by_role("relay")
        holders = [r for r in relays if r.held == newest]
        own_node = self.trainer.node if self.trainer else ""
        lacking = [r.name for r in relays if r.held != newest and (r.node != own_node or r.name in self._spoiled)]
        if holders and lacking and self.transfer is None:
            self._offer(holders[0].name, newest, lacking)
        nodes = {r.node for r in holders}
        for engine in self._by_role("engine"):
            if engine.node in nodes and self._lacks(engine, newest) and self._may_install(engine):
                engine.installing = newest
                self._emit(ev.Install(engine.name, newest))

    def _advance_direct(self, newest: WeightsId) -> None:
        lacking = [e for e in self._by_role("engine") if self._lacks(e, newest)]
        if self.trainer and lacking and self.transfer is None and all(self._may_install(e) for e in lacking):
            self._offer(self.trainer.name, newest, [e.name for e in lacking])

    def _offer(self, source: str, weights: WeightsId, targets: list[str]) -> None:
        self._epoch += 1
        self.transfer = Transfer(self._epoch, weights, source, targets, set(targets))
        self.tally.transfers += 1
        self._emit(ev.OfferTransfer(source, self._epoch, weights, self._size(targets)))

    def _size(self, targets: list[str]) -> int:
        """Ranks of a transfer: its source, and as many of each target as have a process of their own."""
        return 1 + sum(self.workers[name].num_ranks for name in targets)

    def _answered(self, name: str, weights: WeightsId) -> None:
        transfer = self.transfer
        if transfer is not None and transfer.weights == weights:
            transfer.open.discard(name)
            if not transfer.open:
                self.transfer = None

    def _lacks(self, engine: Worker, weights: WeightsId) -> bool:
        return engine.installed != weights and engine.installing is None

    def _by_role(self, role: str) -> list[Worker]:
        return [w for w in self.workers.values() if w.role == role]
