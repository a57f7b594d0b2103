"""A worker's link with real sockets and, where the point is a process, real processes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.wire.keys import ClientKeys, load_client, load_server, make_keys, new_keys
from rollart_hpc.wire.link import Link, LinkClosed, beat_due_s
from rollart_hpc.wire.members import Joined, Lost
from rollart_hpc.wire.messages import MAX_FRAME_BYTES, Bye, Stop, WhoAreYou
from tests.wire.star import PATIENCE_S, SHORT_SILENCE_S, Controller, ask, make_hello

ROOT = Path(__file__).parents[2]


class Proxy:
    """TCP between link and hub, so that a test can cut the connection under both."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._sockets += [inner, outer]
            for source, target in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


def echo(link: Link, text: str) -> bool:
    """Whether `text` came back, past whatever else waits."""
    link.send(ask(text))
    while (received := link.recv(PATIENCE_S)) is not None:
        if received[0] == Stop(text):
            return True
    return False


def test_recv_times_out_and_fileno_follows_the_inbox(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    assert link.recv(0) is None and link.recv(0.01) is None
    assert not select.select([link.fileno()], [], [], 0)[0]
    link.send(ask("a"))
    assert select.select([link.fileno()], [], [], PATIENCE_S)[0]
    assert link.recv(PATIENCE_S) == (Stop("a"), [])
    assert not select.select([link.fileno()], [], [], 0)[0]
    link.close()


def test_many_threads_may_send(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())

    def work(start: int) -> None:
        for number in range(start, start + 100):
            link.send(ask(str(number)))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    answers = set()
    for _ in range(400):
        received = link.recv(PATIENCE_S)
        assert received is not None and isinstance(received[0], Stop)
        answers.add(received[0].reason)
    assert answers == {str(number) for number in range(400)}
    link.close()


def test_close_sends_what_is_queued_then_bye(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    assert isinstance(controller.event(), Joined)
    for number in range(50):
        link.send(ask(str(number)))
    link.close("all done")
    link.close("twice is fine")
    link.send(ask("too late"))
    came = [controller.messages.get(timeout=PATIENCE_S)[1] for _ in range(51)]
    assert isinstance(came.pop(), Bye) and came == [ask(str(number)) for number in range(50)]
    lost = controller.event()
    assert isinstance(lost, Lost) and lost.reason == "said bye: all done"
    assert controller.messages.empty()


def test_oversized_is_refused_before_it_leaves(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    with pytest.raises(ValueError, match="too large"):
        link.send(ask("x"), memoryview(bytes(MAX_FRAME_BYTES + 1)))
    assert echo(link, "fine")
    link.close()


@pytest.mark.parametrize(
    ("beaten_s", "sent_s", "heard_s", "due_s"),
    [
        (0.0, 0.0, 0.0, 1.0),  # idle
        (0.0, 0.9, 0.9, 1.9),  # busy: its messages are signs of life
        (0.0, 0.9, 0.2, 1.2),  # it sends and hears nothing: does the controller live?
        (1.2, 1.9, 0.2, 2.2),  # likewise, asked a moment ago
        (0.0, 0.2, 0.9, 1.2),  # it hears and sends nothing
        (0.0, 9.9, 9.9, 10.0),  # busy for long: the clock is to be measured
    ],
)
def test_a_heartbeat_is_due_where_no_message_stands_for_it(
    beaten_s: float, sent_s: float, heard_s: float, due_s: float
) -> None:
    assert beat_due_s(1.0, beaten_s, sent_s, heard_s) == pytest.approx(due_s)


def test_clock_offset_is_measured(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    link.clock_offset_s = 1000.0
    deadline_s = time.monotonic() + PATIENCE_S
    while abs(link.clock_offset_s) > 0.05 and time.monotonic() < deadline_s:  # one machine, one clock
        link.recv(0.05)
    assert abs(link.clock_offset_s) <= 0.05
    link.close()


def test_no_controller_is_a_site_error() -> None:
    client = new_keys()[1]["env"]
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(SiteError, match=r"no Welcome from .* in 0\.3 s"),
    ):
        Link(f"tcp://127.0.0.1:{silent.getsockname()[1]}", client, make_hello(), welcome_timeout_s=0.3)


def test_key_of_another_attempt_fails_at_once(controller: Controller) -> None:
    other = new_keys()[1]["env"]
    keys = ClientKeys(other.public, other.secret, controller.client.server_public)
    with pytest.raises(LinkClosed, match="refused our key"):
        Link(controller.address, keys, make_hello(), welcome_timeout_s=PATIENCE_S)


@pytest.mark.parametrize("wrong", [{"package": "0.0"}, {"attempt": 0}])
def test_refused_hello_closes_the_link(controller: Controller, wrong: dict[str, object]) -> None:
    with pytest.raises(LinkClosed, match="refused"):
        Link(controller.address, controller.client, make_hello(**wrong))  # type: ignore[arg-type]


def test_newer_process_closes_the_older_ones_link(controller: Controller) -> None:
    old = Link(controller.address, controller.client, make_hello())
    new = Link(controller.address, controller.client, make_hello())
    with pytest.raises(LinkClosed, match="took over"):
        old.recv(PATIENCE_S)
    assert select.select([old.fileno()], [], [], 0)[0]  # stays readable
    assert echo(new, "mine now")
    old.close()
    new.close()


def test_reconnects_and_joins_again_when_the_connection_drops(controller: Controller) -> None:
    proxy = Proxy(controller.hub.port)
    link = Link(proxy.address, controller.client, make_hello())
    assert isinstance(controller.event(), Joined)
    for _ in range(2):
        proxy.cut()
        assert link.recv(PATIENCE_S) == (WhoAreYou(), [])  # messages may be gone: start over
        assert isinstance(controller.event(), Lost)
        assert isinstance(controller.event(), Joined)
        assert echo(link, "after")
    link.close()
    proxy.close()


def test_who_joins_again_says_what_it_is_by_then(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello(version=3))
    assert isinstance(first := controller.event(), Joined) and first.hello.version == 3
    link.update_hello(version=4)
    controller.members.lose("env-0", "a mistake")
    assert link.recv(PATIENCE_S) == (WhoAreYou(), [])
    assert isinstance(again := controller.event(), Joined)
    assert (again.hello.version, again.hello.incarnation) == (4, first.hello.incarnation)
    link.close()


def test_dead_controller_is_noticed() -> None:
    controller = Controller(*new_keys(), silence_s=0.7)
    link = Link(controller.address, controller.client, make_hello())
    controller.close()
    with pytest.raises(LinkClosed, match="silent"):
        link.recv(PATIENCE_S)
    link.close()


def test_lost_worker_that_lives_joins_again(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    assert isinstance(controller.event(), Joined)
    controller.members.lose("env-0", "a mistake")
    assert link.recv(PATIENCE_S) == (WhoAreYou(), [])
    assert isinstance(controller.event(), Joined)
    link.close()


# --- processes ---------------------------------------------------------------------------------


@pytest.fixture
def keys_dir(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def outside(keys_dir: Path):  # type: ignore[no-untyped-def]
    running = Controller(load_server(keys_dir), {"env": load_client(keys_dir, "env")}, silence_s=SHORT_SILENCE_S)
    yield running
    running.close()


def start_worker(keys_dir: Path, controller: Controller, deed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.wire.worker", str(keys_dir), controller.address, f"env-{deed}", deed]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_busy_main_threads_are_not_lost(keys_dir: Path, outside: Controller) -> None:
    """Each is busy for twice the silence that counts as death."""
    deeds = {"sleep", "hash", "loop"}
    processes = [start_worker(keys_dir, outside, deed) for deed in sorted(deeds)]
    for _ in deeds:
        assert isinstance(outside.event(), Joined)
    for _ in deeds:  # what each says when it is back, and its Bye
        outside.messages.get(timeout=PATIENCE_S)
        outside.messages.get(timeout=PATIENCE_S)
    for process in processes:
        assert process.wait(PATIENCE_S) == 0
    for _ in deeds:
        lost = outside.event()
        assert isinstance(lost, Lost) and lost.reason == "said bye: finished"


def test_stopped_process_is_lost_and_joins_again_when_it_goes_on(keys_dir: Path, outside: Controller) -> None:
    process = start_worker(keys_dir, outside, "wait")
    assert isinstance(outside.event(), Joined)
    process.send_signal(signal.SIGSTOP)
    lost = outside.event()
    assert isinstance(lost, Lost) and lost.reason.startswith("silent")
    process.send_signal(signal.SIGCONT)
    assert isinstance(outside.event(), Joined)
    process.kill()
    process.wait(PATIENCE_S)
    lost = outside.event()
    assert isinstance(lost, Lost) and lost.reason.startswith("silent")


def test_process_that_raises_without_closing_ends(keys_dir: Path, outside: Controller) -> None:
    process = start_worker(keys_dir, outside, "raise")
    assert process.wait(PATIENCE_S) == 1


def test_heartbeats_tell_a_busy_main_loop_from_a_stuck_one(controller: Controller) -> None:
    link = Link(controller.address, controller.client, make_hello())
    done = [0]
    link.count_work(lambda: done[0])

    def heard(is_wanted) -> bool:
        """Whether such a heartbeat comes, without touching the link."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_wanted(controller.heartbeat) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return is_wanted(controller.heartbeat)

    link.recv(0)
    assert heard(lambda beat: beat.age_s > 0.3), "the main loop does not come around"
    link.rest()
    assert heard(lambda beat: beat.age_s == 0.0), "it waits for work"
    waiting = threading.Thread(target=link.recv, args=(PATIENCE_S,))
    link.turn()
    waiting.start()
    assert heard(lambda beat: beat.age_s == 0.0), "it waits in recv"
    done[0] = 7
    seen = []
    assert heard(lambda beat: seen.append(beat.work) or beat.work == 7 or 7 in seen)
    assert heard(lambda beat: beat.work == 0), "only what is new counts"
    link.send(Resend("go on", 0, 0))
    waiting.join(PATIENCE_S)
    link.close()
