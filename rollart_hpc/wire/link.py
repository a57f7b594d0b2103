"""A worker's end of the star: one DEALER to the controller, owned by its own thread.

Owns registration, heartbeats, reconnecting and the detection of a silent controller. The role's main thread
calls `send` and `recv` and may be busy for any length of time: the link's thread keeps sending heartbeats.
Knows nothing of roles.

    main thread                       I/O thread                            controller
    send() -> outbox, wake-up ------> DEALER ----------------------------->
    recv() <- inbox, eventfd <------- DEALER <-----------------------------

When the connection breaks or the controller considers us lost, messages may be lost in both directions. The link
then sends Hello again and passes `WhoAreYou` to the role, which drops its work: the controller issues it again.

Heartbeats say how long ago the main loop came around (`turn`, called by `recv`), unless it waits for work (`rest`), and
how much work it did (`count_work`). So the controller can tell a busy process from a stuck one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq
import zmq.utils.monitor

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Frame
from rollart_hpc.wire import messages
from rollart_hpc.wire.hub import identity_of
from rollart_hpc.wire.keys import ClientKeys
from rollart_hpc.wire.messages import (
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    AnyMessage,
    BadMessage,
    Bye,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Message,
    Refused,
    Welcome,
    WhoAreYou,
)
from rollart_hpc.wire.parts import TornMessage, send_parts, unpack
from rollart_hpc.wire.wakeup import Wakeup

log = logging.getLogger(__name__)

Received = tuple[AnyMessage, list[Frame]]

CLOCK_BEATS = 10  # a busy link sends one heartbeat per this many intervals


def beat_due_s(every_s: float, beaten_s: float, sent_s: float, heard_s: float) -> float:
    """When the next heartbeat is due, given the times of the last heartbeat, message sent and message received.

    Any message is a sign of life: a heartbeat is due only if nothing was sent, or nothing received, for an interval.
    A busy link still sends one now and then, because the answer carries the controller's clock.
    """
    silent_s = min(sent_s, max(heard_s, beaten_s))
    return min(silent_s + every_s, beaten_s + CLOCK_BEATS * every_s)


class LinkClosed(SiteError):
    """The controller is gone or has refused us: the process must exit."""


class Link:
    def __init__(self, address: str, keys: ClientKeys, hello: Hello, *, welcome_timeout_s: float = 60.0) -> None:
        self.clock_offset_s = 0.0  # controller's monotonic clock minus ours
        self.closed_reason: str | None = None
        self._address = address
        self._hello = hello
        self._lock = threading.Lock()
        self._inbox: deque[Received] = deque()
        self._outbox: deque[list[Frame]] = deque()
        self._incoming = Wakeup()
        self._outgoing = Wakeup()
        self._welcomed = threading.Event()
        self._bye: Bye | None = None
        self._last_failure = "no answer"
        self._heartbeat_s = 1.0
        self._sent_s = 0.0
        self._silence_s = float("inf")  # until Welcome sets it
        self._turned_s: float | None = None  # when the main loop last came around; None: it waits
        self._work: Callable[[], int] = lambda: 0
        self._told_work = 0
        self._connected = False
        self._hello_waits = True  # sent, not yet answered
        self._best_round_trip_s = float("inf")
        self._context = zmq.Context()
        self._dealer = self._make_dealer(keys)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()
        self._await_welcome(welcome_timeout_s)

    def _make_dealer(self, keys: ClientKeys) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.identity = identity_of(self._hello.name, self._hello.incarnation)
        dealer.curve_publickey = keys.public.encode()
        dealer.curve_secretkey = keys.secret.encode()
        dealer.curve_serverkey = keys.server_public.encode()
        # Far more than credits allow in flight. When the queue is full the rest waits in the outbox, in order.
        dealer.sndhwm = 10_000
        dealer.rcvhwm = 10_000
        dealer.maxmsgsize = MAX_FRAME_BYTES
        dealer.linger = 1000  # ms at close, for the last result and Bye
        dealer.reconnect_ivl = 100
        dealer.reconnect_ivl_max = 2000
        dealer.tcp_keepalive = 1
        dealer.tcp_keepalive_idle = 30
        dealer.tcp_keepalive_intvl = 10
        dealer.tcp_keepalive_cnt = 3
        return dealer

    def _await_welcome(self, timeout_s: float) -> None:
        self._welcomed.wait(timeout_s)
        if self.closed_reason is not None:
            reason = self.closed_reason
            self.close(reason)
            raise LinkClosed(f"{self._hello.name}: {reason}")
        if not self._welcomed.is_set():
            self.close("no Welcome")
            raise SiteError(
                f"{self._hello.name}: no Welcome from {self._address} in {timeout_s:g} s ({self._last_failure})",
                "check that the controller of this attempt is running and that this node can reach its address",
            )

    # --- main thread -----------------------------------------------------------------------------

    def send(self, message: Message, *frames: Frame) -> None:
        """Call from any thread; never blocks. Don't change the frames afterwards."""
        if len(frames) >= MAX_FRAMES or any(memoryview(frame).nbytes > MAX_FRAME_BYTES for frame in frames):
            raise ValueError(f"{type(message).__name__}: too many frames, or one is too large")
        if self._bye is not None:
            return  # the caller is a thread of the role that outlives the link
        self._outbox.append([messages.encode(message), *frames])
        self._outgoing.set()

    def update_hello(self, *, version: int) -> None:
        """Call from any thread. Changes the Hello for the next time this process joins."""
        self._hello = msgspec.structs.replace(self._hello, version=version)

    def turn(self) -> None:
        """The main loop came around. A loop that waits elsewhere than in `recv` calls it after every wait."""
        self._turned_s = time.monotonic()

    def rest(self) -> None:
        """The main loop waits for work from now on."""
        self._turned_s = None

    def count_work(self, total: Callable[[], int]) -> None:
        """`total` gives all work done so far, e.g. tokens. The link's thread calls it."""
        self._work = total

    def recv(self, timeout_s: float | None = None) -> Received | None:
        """The next message, or None after `timeout_s` (None: wait forever). Raises LinkClosed once it is closed."""
        try:
            return self._recv(timeout_s)
        finally:
            self.turn()

    def _recv(self, timeout_s: float | None) -> Received | None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            received = self._pop()
            if received is not None:
                return received
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self.rest()
            self._incoming.wait(left_s)

    def _pop(self) -> Received | None:
        with self._lock:
            if self._inbox:
                received = self._inbox.popleft()
                if not self._inbox and self.closed_reason is None:
                    self._incoming.clear()
                return received
            if self.closed_reason is not None:
                raise LinkClosed(f"{self._hello.name}: {self.closed_reason}")
            self._incoming.clear()
            return None

    def fileno(self) -> int:
        """For selectors: readable while messages wait, and always once the link is closed."""
        return self._incoming.fd

    def close(self, reason: str = "done", *, is_leaving: bool = False) -> None:
        """Sends what is queued, then Bye. May be called twice."""
        if self._bye is not None:
            return
        self._bye = Bye(messages.clip(reason), is_leaving)
        self._outgoing.set()
        self._thread.join()
        self._context.term()
        self._incoming.close()
        self._outgoing.close()

    # --- I/O thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        monitor = self._dealer.get_monitor_socket(
            zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        try:
            self._dealer.connect(self._address)
            self._say_hello()
            self._serve(monitor)
        except Exception as error:  # the main thread must not wait forever, whatever happened
            log.exception("link thread failed")
            self._end(f"link failed: {error}")
        finally:
            self._dealer.disable_monitor()
            monitor.close(0)
            self._dealer.close()

    def _serve(self, monitor: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._outgoing.fd, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        poller.register(self._dealer, zmq.POLLIN)
        heard_s = beaten_s = woken_s = self._sent_s = time.monotonic()
        while self._bye is None and self.closed_reason is None:
            beat_s = beat_due_s(self._heartbeat_s, beaten_s, self._sent_s, heard_s)
            due_s = min(beat_s, heard_s + self._silence_s)
            wait_s = max(0.0, due_s - time.monotonic())
            ready = dict(poller.poll(int(wait_s * 1000) + 1))
            now = time.monotonic()
            if now - woken_s > wait_s + self._silence_s / 2:
                heard_s = now  # this process was blocked, not the controller
            woken_s = now
            if self._outgoing.fd in ready:
                self._outgoing.clear()
            if monitor in ready:
                self._read_monitor(monitor)
            if self._dealer in ready and self._read_all():
                heard_s = now
            if now >= beat_due_s(self._heartbeat_s, beaten_s, self._sent_s, heard_s):
                beaten_s = self._sent_s = now
                if self._welcomed.is_set():
                    self._put([messages.encode(self._heartbeat(now))])
            blocked = not self._flush()
            poller.modify(self._dealer, zmq.POLLIN | (zmq.POLLOUT if blocked else 0))
            if now - heard_s > self._silence_s:
                self._end(f"the controller has been silent for {self._silence_s:g} s")
        self._flush()
        if self.closed_reason is None:
            self._put([messages.encode(self._bye or Bye(""))])

    def _heartbeat(self, now: float) -> Heartbeat:
        turned_s, total = self._turned_s, self._work()
        work, self._told_work = total - self._told_work, total
        return Heartbeat(now, 0.0 if turned_s is None else max(0.0, now - turned_s), max(0, work))

    def _put(self, parts: Sequence[Frame]) -> bool:
        try:
            send_parts(self._dealer, parts)
        except zmq.Again:
            return False
        self._sent_s = time.monotonic()
        return True

    def _flush(self) -> bool:
        while self._outbox:
            if not self._put(self._outbox[0]):
                return False
            self._outbox.popleft()
        return True

    def _read_all(self) -> bool:
        """True if a valid message arrived."""
        heard = False
        while True:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return heard
            try:
                header, *payloads = unpack([frame.buffer for frame in frames])
                message = messages.decode(header)
            except (BadMessage, TornMessage) as error:
                log.warning("ignoring a bad message from the controller: %s", error)
                continue
            heard = True
            self._receive(message, payloads)

    def _receive(self, message: AnyMessage, frames: list[Frame]) -> None:
        if isinstance(message, HeartbeatAck):
            self._measure_clock(message)
        elif isinstance(message, Welcome):
            self._welcome(message)
        elif isinstance(message, WhoAreYou):
            if not self._hello_waits:  # otherwise it answers a message we sent before our Hello
                self._say_hello()
        elif isinstance(message, Refused):
            self._end(f"refused: {message.reason}")
        else:
            self._deliver(message, frames)

    def _say_hello(self) -> None:
        self._hello_waits = True
        hello = messages.encode(self._hello)
        if not self._put([hello]):
            self._outbox.appendleft([hello])

    def _welcome(self, message: Welcome) -> None:
        self._hello_waits = False
        self._heartbeat_s, self._silence_s = message.heartbeat_s, message.silence_s
        if not self._welcomed.is_set():
            self.clock_offset_s = message.clock_s - time.monotonic()
            self._welcomed.set()
        else:
            self._deliver(WhoAreYou(), [])

    def _measure_clock(self, ack: HeartbeatAck) -> None:
        """The fastest round trip gives the best offset. The record expires slowly, because clocks drift."""
        now = time.monotonic()
        round_trip_s = now - ack.sent_s
        if round_trip_s <= self._best_round_trip_s:
            self.clock_offset_s = ack.clock_s - (ack.sent_s + now) / 2
            self._best_round_trip_s = round_trip_s
        self._best_round_trip_s *= 1.01

    def _read_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        while monitor.poll(0):
            event = int(zmq.utils.monitor.recv_monitor_message(monitor)["event"])
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._end("the controller refused our key: it belongs to another attempt")
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
            elif event == zmq.EVENT_DISCONNECTED:
                if self._connected:  # not a failed handshake
                    log.info("the connection to the controller broke; joining again")
                    self._say_hello()
                self._connected = False
            else:
                self._last_failure = "the handshake failed: wrong key, or not a controller"

    def _deliver(self, message: AnyMessage, frames: list[Frame]) -> None:
        with self._lock:
            self._inbox.append((message, frames))
            self._incoming.set()

    def _end(self, reason: str) -> None:
        with self._lock:
            self.closed_reason = reason
            self._incoming.set()
        self._welcomed.set()
