"""The real controller behind a hub without a socket, and honest workers. Tests send what these never would."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollart_hpc import __version__
from rollart_hpc.config.schema import CheckpointConfig, FlowConfig, RunConfig, TaskConfig, ValidationConfig
from rollart_hpc.flow import events as ev
from rollart_hpc.roles import controller as module
from rollart_hpc.roles.controller import Controller
from rollart_hpc.roles.start import Start
from rollart_hpc.rundir import TRAINER_PART, RunDir
from rollart_hpc.types import Frame
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import Hub, identity_of
from rollart_hpc.wire.keys import make_keys
from rollart_hpc.wire.messages import MAX_FRAME_BYTES, BadMessage
from rollart_hpc.wire.parts import TornMessage, pack

TOKENS = 4
CAST = {  # role, node, pool, capacity
    "trainer": ("trainer", "compute", "", 1), "relay-compute": ("relay", "compute", "", 0),
    "engine-0": ("engine", "compute", "compute", 8), "engine-1": ("engine", "compute", "compute", 8),
    "env-0": ("env", "cpu", "", 8), "env-1": ("env", "cpu", "", 8), "reward-0": ("reward", "cpu", "", 4),
    "supervisor": ("supervisor", "cpu", "", 0),
}  # fmt: skip


class Key:
    """The last frame of a message, which knows the role of the sender's key."""

    def __init__(self, role: str) -> None:
        self.role = role

    def get(self, _: str) -> str:
        return self.role


class StubHub(Hub):
    """Reading, routes and complaints are the real ones."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.host, self.port = "127.0.0.1", 1
        self.sent: deque[tuple[bytes, ms.Message, tuple[Frame, ...]]] = deque()
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._routes, self._names, self._roles, self._newest, self._logged_s = {}, {}, {}, {}, {}
        self._superseded = set()

    def feed(self, identity: bytes, role: str, parts: list[bytes]) -> Any:
        try:
            return self._read(identity, pack(parts), Key(role))  # type: ignore[arg-type]
        except (BadMessage, TornMessage) as error:
            self.complain("bad_messages", str(error))
            return None

    def _send_raw(self, identity: bytes, message: ms.Message, *frames: Frame) -> bool:
        ms.encode(message)  # as the real one does: a number that does not fit raises
        self.sent.append((identity, message, frames))
        return True

    def poll(self, timeout_s: float | None, max_messages: int = 1000) -> list[Any]:
        return []

    def close(self) -> None:
        pass


def record(version: int, tokens: int = TOKENS) -> list[bytes]:
    """The frames of an answer."""
    arrays = np.zeros(tokens, np.int32), np.zeros(tokens, np.float32), np.full(tokens, version, np.int32)
    return [array.tobytes() for array in arrays]


class StubRun:
    def __init__(self, path: Path, vocabulary: int = 100, quarantine_after: int = 8, transport: str = "staged") -> None:
        self.run = RunDir(path).create()
        make_keys(self.run.keys(self.run.begin_attempt()))
        config = RunConfig(name="stub", steps=1_000_000, tasks={"a": TaskConfig(name="a")})
        config.flow = FlowConfig(alpha=1, groups_per_step=2, group_size=2, quarantine_after=quarantine_after)
        config.validation, config.checkpoint = ValidationConfig(plays=0), CheckpointConfig(every=3)
        config.weights.transport = transport
        self.controller = Controller(Start("controller", self.run, config, "controller", "", 1, "cpu", "", 0, 1, "x"))
        assert isinstance(self.controller.hub, StubHub)
        self.hub, self.core = self.controller.hub, self.controller.core
        self.controller.checks._vocabulary = vocabulary
        self.incarnations: dict[str, int] = dict.fromkeys(CAST, 0)
        self.said: deque[tuple[str, ms.Message, list[bytes]]] = deque(maxlen=300)
        self.installed: dict[str, int] = {}
        self.now = 0.0
        self.reached = 0  # messages that became events
        for name in CAST:
            self.join(name)

    # --- in ------------------------------------------------------------------------------------

    def identity(self, name: str) -> bytes:
        return identity_of(name, str(self.incarnations[name]))

    def join(self, name: str) -> None:
        self.incarnations[name] += 1
        role, node, pool, capacity = CAST[name]
        version = self.core.version if role == "trainer" else -1
        incarnation = str(self.incarnations[name])
        self.say(name, ms.Hello(role, name, node, pool, capacity, __version__, 1, incarnation, 1, version=version))
        if role == "trainer":
            self.publish()

    def publish(self) -> None:
        self.say("trainer", ms.Published(1, self.core.version, 1, 0.1))
        self.say("trainer", ms.BatchWanted(self.core.version))

    def say(self, name: str, message: ms.Message, *frames: bytes) -> None:
        self.said.append((name, message, list(frames)))
        self.take(self.identity(name), CAST[name][0], [ms.encode(message), *frames])

    def take(self, identity: bytes, role: str, parts: list[bytes]) -> bool:
        """A message arrives. True if it decoded and its sender may send it."""
        incoming = self.hub.feed(identity, role, parts)
        if incoming is None:
            return False
        self.controller._take(*incoming)
        self.reached += bool(self.controller.pending)
        self.controller._settle()
        return True

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes in the core."""
        self.now += seconds
        self.controller.pending.append(ev.Tick(self.now))
        self.controller._settle()
        self.controller._receive(0.0)

    # --- honest workers ------------------------------------------------------------------------

    @staticmethod
    def write_part(save: ms.Save) -> str:
        """The trainer's part of a checkpoint. Returns what went wrong: the controller may have given it up."""
        part = Path(save.directory) / TRAINER_PART
        try:
            part.mkdir()
        except OSError as error:
            return str(error)
        (part / "weights").write_bytes(b"weights")
        return ""

    def answer(self, most: int, *but: type) -> int:
        """The workers answer what they were sent, but keep messages of the types `but` waiting."""
        kept, done = [], 0
        while self.hub.sent and done < most:
            identity, message, frames = self.hub.sent.popleft()
            name = identity.decode().partition("#")[0]
            if name not in CAST or identity != self.identity(name):
                continue
            if isinstance(message, but):
                kept.append((identity, message, frames))
                continue
            self._answer(name, message)
            done += 1
        self.hub.sent.extendleft(reversed(kept))
        return done

    def _answer(self, name: str, m: ms.Message) -> None:
        match m:
            case ms.Play() | ms.Resend():
                turn = getattr(m, "turn", 0)
                self.say(name, ms.TurnWanted(m.trajectory, m.issue, turn, 0, 0, TOKENS, True), bytes(8))
            case ms.Generate():
                version = self.installed.get(name, 0)
                self.say(name, ms.Generated(m.request, m.trajectory, 2, TOKENS, 0.1, 0.1, 0.1, 5), *record(version))
            case ms.Generated():
                self._go_on(name, m.trajectory)
            case ms.ScoreWanted():
                self.say(name, ms.Scored(m.trajectory, m.issue, float(m.issue % 2), True, 0.1))
            case ms.TransferOffer():
                self.say(name, ms.TransferReady(m.epoch, "h", 1, "s"))
            case ms.TransferJoin() if CAST[name][0] == "relay":
                self.say(name, ms.Held(m.attempt, m.version, 1, 0.1))
            case ms.Install() | ms.TransferJoin():
                self.installed[name] = m.version
                self.say(name, ms.Installed(m.attempt, m.version, 1, 0.1, 0.1))
            case ms.Adopt():
                self.say(name, ms.Held(m.attempt, m.version, 1, 0.1))
            case ms.PublishAgain():
                self.say(name, ms.Published(m.attempt, m.version, 1, 0.1))
            case ms.Chunk() if m.last and m.step == self.core.version:
                self.say(name, ms.Committed(m.step, m.step + 1, "p", "d", {"loss": 1.0}, 0.1, 0.1))
                self.publish()
            case ms.Save():
                self.say(name, ms.Saved(m.version, self.write_part(m)))
            case ms.WhoAreYou() | ms.Refused():
                self.join(name)

    def _go_on(self, name: str, trajectory: str) -> None:
        found = self.core.trajectories.all.get(trajectory)
        if found is None:
            return
        if found.turn < 1:
            wanted = ms.TurnWanted(trajectory, found.issue, found.turn + 1, 6, 0, TOKENS, False)
            self.say(name, wanted, bytes(8))
        else:
            ended = ms.Ended(trajectory, found.issue, "done", "", 2, TOKENS, [TOKENS], 0.1, 0.1)
            self.say(name, ended, b"\x80", *record(found.first_version))

    def next(self, kind: type) -> tuple[str, Any]:
        """The receiver of the next message of this kind, and the message. The workers answer what comes before."""
        for _ in range(1000):
            for entry in list(self.hub.sent):
                if isinstance(entry[1], kind):
                    self.hub.sent.remove(entry)
                    return entry[0].decode().partition("#")[0], entry[1]
            if not self.answer(1):
                self.tick()
        raise AssertionError(f"no {kind.__name__}")

    def close(self) -> None:
        self.controller.journal.close()


@contextmanager
def stub_run(path: Path, **changes: Any) -> Iterator[StubRun]:
    real = module.listen
    module.listen = lambda *_: StubHub()  # type: ignore[assignment]
    try:
        made = StubRun(path, **changes)
    finally:
        module.listen = real
    try:
        yield made
    finally:
        made.close()
