"""The work of a relay on its node's store. Owns transfers in flight; knows no socket of the control plane.

    Adopt          the trainer of this node wrote a version here    -> Held | TransferFailed(NO_EPOCH)
    TransferOffer  send a version to other nodes, in a thread       -> TransferReady, then TransferSent | TransferFailed
    TransferJoin   receive a version into the store, in a thread    -> Held | TransferFailed

It keeps the two newest versions and those being sent. The memory of the version before them is reused for the next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rollart_hpc.errors import RollartError, SiteError
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.forming import collective_of
from rollart_hpc.weights.layout import BadWeights
from rollart_hpc.weights.mpi import MpiWorld
from rollart_hpc.weights.process_groups import TransferError
from rollart_hpc.weights.store import MANIFEST, NodeStore, StoredWeights, new_bucket
from rollart_hpc.weights.transfer import Receiving, Rendezvous, Sending, open_rendezvous
from rollart_hpc.wire.messages import (
    Adopt,
    Held,
    Message,
    TransferFailed,
    TransferJoin,
    TransferOffer,
    TransferReady,
    TransferSent,
    clip,
)

log = logging.getLogger(__name__)

KEEP = 2
NO_EPOCH = 0  # an Adopt belongs to no epoch; the controller counts from 1


class Relay:
    """Calls `report` from the caller's thread and from transfer threads."""

    def __init__(
        self,
        store: NodeStore,
        host: str,
        deadline_s: float,
        report: Callable[[Message], None],
        tracer: Tracer,
        world: MpiWorld | None = None,
    ) -> None:
        self._store = store
        self._host = host
        self._deadline_s = deadline_s
        self._report = report
        self._tracer = tracer
        self._world = world
        self._lock = threading.Lock()
        self._sending: Counter[WeightsId] = Counter()
        self._verified: dict[WeightsId, StoredWeights] = {}
        self._threads: list[threading.Thread] = []

    def announce(self) -> None:
        """Report what the store already holds: after a restart, or when the controller considered this process lost."""
        for weights_id in self._store.versions():
            try:
                self._verify(weights_id, time.monotonic())
            except BadWeights as error:
                log.warning("discarding bad weights %s: %s", weights_id, error)
                self._discard(weights_id)

    def handle(self, message: Message) -> None:
        if isinstance(message, Adopt):
            self._adopt(WeightsId(message.attempt, message.version))
        elif isinstance(message, TransferOffer):
            self._offer(message)
        elif isinstance(message, TransferJoin):
            self._start(message.epoch, self._receive, message)
        else:
            log.warning("ignoring unexpected message %s", type(message).__name__)

    def close(self) -> None:
        """Wait for transfers in flight. At the end of a run their peers leave too, which ends them."""
        for thread in self._threads:
            thread.join()

    def _adopt(self, weights_id: WeightsId) -> None:
        start_s = time.monotonic()
        try:
            self._verify(weights_id, start_s)
        except (BadWeights, OSError) as error:
            if any(newer > weights_id for newer in self._store.versions()):
                log.info("%s is already gone, and a newer version is here", weights_id)
                return
            log.warning("can't adopt %s: %s; see the trainer's log", weights_id, error)
            self._discard(weights_id)
            self._report(TransferFailed(NO_EPOCH, clip(f"can't adopt {weights_id}: {error}")))
            return
        self._tracer.span("weights.adopt", start_s, time.monotonic(), version=weights_id.version)
        self._prune()

    def _verify(self, weights_id: WeightsId, start_s: float) -> None:
        stored = self._store.open(weights_id)
        stored.verify()
        self._verified[weights_id] = stored
        self._report(Held(*weights_id, stored.manifest.num_bytes, time.monotonic() - start_s))

    def _discard(self, weights_id: WeightsId) -> None:
        self._verified.pop(weights_id, None)
        self._store.discard(weights_id)

    def _doubt(self, weights_id: WeightsId) -> None:
        """A transfer of this version failed, maybe because a target found it bad: verify our copy again."""
        self._verified.pop(weights_id, None)
        if weights_id in self._store.versions():
            self._adopt(weights_id)

    def _offer(self, offer: TransferOffer) -> None:
        try:
            rendezvous = open_rendezvous(self._host)
        except SiteError as error:
            self._report(TransferFailed(offer.epoch, clip(str(error))))
            return
        self._start(offer.epoch, self._send, offer, rendezvous)
        self._report(TransferReady(offer.epoch, rendezvous.host, rendezvous.port, rendezvous.secret))

    def _start(self, epoch: int, work: Callable[..., None], *args: object) -> None:
        """Epochs don't wait for each other: an old one with a lost peer ends by its deadline."""
        thread = threading.Thread(target=self._guarded, args=(epoch, work, *args), name=f"transfer-{epoch}")
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _guarded(self, epoch: int, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except RollartError as error:
            log.warning("weight transfer %d failed: %s", epoch, error)
            self._report(TransferFailed(epoch, clip(error.what)))
        except Exception as error:  # report every failure: the controller then forms the collective again
            log.exception("weight transfer %d failed", epoch)
            self._report(TransferFailed(epoch, clip(f"{type(error).__name__}: {error}")))
        finally:
            with suppress(OSError):
                self._prune()

    def _send(self, offer: TransferOffer, rendezvous: Rendezvous) -> None:
        weights_id = WeightsId(offer.attempt, offer.version)
        with self._in_use(weights_id):
            stored = self._verified.get(weights_id) or self._store.open(weights_id)
            sending = Sending(rendezvous, offer.size, self._deadline_s, world=self._world)
            start_s = time.monotonic()
            manifest = stored.manifest
            try:
                num_bytes = sending.send(weights_id, stored.buckets(), lambda: manifest.digest, manifest.buckets)
            except RollartError:
                self._doubt(weights_id)
                raise
        end_s = time.monotonic()
        self._tracer.span("weights.send", start_s, end_s, version=weights_id.version, bytes=num_bytes)
        self._report(TransferSent(offer.epoch, num_bytes, end_s - start_s, collective_of(sending.group)))

    def _receive(self, join: TransferJoin) -> None:
        weights_id = WeightsId(join.attempt, join.version)
        receiving = Receiving(
            join.host, join.port, join.secret, join.rank, join.size, deadline_s=self._deadline_s, world=self._world
        )
        start_s = time.monotonic()
        with receiving, self._store.draft(weights_id) as draft:
            if receiving.weights_id != weights_id:
                raise TransferError(f"weight transfer {join.epoch} sends {receiving.weights_id}, expected {weights_id}")
            for _ in receiving.buckets(lambda index, num_bytes: new_bucket(draft, index, num_bytes)):
                pass
            manifest = receiving.manifest()
            draft.commit(MANIFEST, manifest.encode())
            receiving.acknowledge()
        end_s = time.monotonic()
        self._tracer.span("weights.receive", start_s, end_s, version=weights_id.version, bytes=manifest.num_bytes)
        self._report(Held(*weights_id, manifest.num_bytes, end_s - start_s))

    @contextmanager
    def _in_use(self, weights_id: WeightsId) -> Iterator[None]:
        with self._lock:
            self._sending[weights_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending[weights_id] -= 1

    def _prune(self) -> None:
        with self._lock:
            in_use = [weights_id for weights_id, count in self._sending.items() if count]
            self._sending = +self._sending
        for gone in self._store.prune(KEEP, in_use):
            self._verified.pop(gone, None)
