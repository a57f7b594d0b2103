"""Membership as pure logic: no socket, a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rollart_hpc.vocabulary import ProcessState
from rollart_hpc.wire.members import PATIENCE, Joined, Lost, Members
from rollart_hpc.wire.messages import (
    Bye,
    Exited,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Message,
    Welcome,
)  # fmt: skip
from tests.wire.star import ask, make_hello

SILENCE_S = 10.0


class Router:
    """The hub as `Members` sees it."""

    def __init__(self) -> None:
        self.routes: dict[str, str] = {}
        self.sent: list[tuple[str, Message]] = []
        self.refused: list[str] = []

    def send(self, name: str, message: Message) -> bool:
        self.sent.append((name, message))
        return name in self.routes

    def admit(self, name: str, incarnation: str, role: str) -> None:
        self.routes[name] = incarnation

    def refuse(self, name: str, incarnation: str, reason: str) -> None:
        self.refused.append(reason)

    def forget(self, name: str) -> None:
        self.routes.pop(name, None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[Members, Router, Clock]:
    router, clock = Router(), Clock()
    return Members(router, attempt=1, heartbeat_s=1, silence_s=SILENCE_S, clock=clock), router, clock


def test_hello_joins_and_is_welcomed() -> None:
    members, router, clock = make()
    hello = make_hello()
    assert members.handle("env-0", hello) == [Joined(hello)]
    assert router.sent == [("env-0", Welcome(1, PATIENCE * SILENCE_S, clock.now))]
    assert members.alive == {"env-0": hello} and router.routes == {"env-0": hello.incarnation}


def test_heartbeat_is_acknowledged_with_our_clock() -> None:
    members, router, clock = make()
    members.handle("env-0", make_hello())
    clock.now += 1
    members.handle("env-0", Heartbeat(7.5))
    assert router.sent[-1] == ("env-0", HeartbeatAck(7.5, clock.now))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"package": "9.9"}, "package version"), ({"attempt": 0}, "attempt 0 is over"), ({"role": "boss"}, "role"),
     ({"role": "controller"}, "role"), ({"capacity": -1}, "capacity"), ({"name": "a b"}, "not a valid name"),
     ({"incarnation": ""}, "not a valid name"), ({"kv_tokens": -1}, "kv_tokens -1"), ({"speed": 0.0}, "speed 0.0"),
     ({"speed": 101.0}, "speed 101.0"), ({"speed": float("nan")}, "speed nan")],
)  # fmt: skip
def test_wrong_hello_is_refused_and_harms_no_live_member(wrong: dict[str, object], reason: str) -> None:
    members, router, _ = make()
    good = make_hello()
    members.handle("env-0", good)
    bad = make_hello(**{"name": "env-0", **wrong})  # type: ignore[arg-type]
    assert members.handle(bad.name, bad) == []
    assert len(router.refused) == 1 and reason in router.refused[0]
    assert members.alive == {"env-0": good} and router.routes == {"env-0": good.incarnation}


def test_later_attempts_join_and_the_fence_may_rise() -> None:
    members, router, _ = make()
    assert len(members.handle("trainer", make_hello("trainer", role="trainer", attempt=2))) == 1
    members.fence = 2
    assert members.handle("env-0", make_hello(attempt=1)) == [] and "attempt 1 is over" in router.refused[0]


def test_newer_process_takes_the_name_over() -> None:
    members, router, _ = make()
    old, new = make_hello(), make_hello()
    members.handle("env-0", old)
    assert members.handle("env-0", new) == [Lost(old, "replaced by a newer process"), Joined(new)]
    assert router.routes == {"env-0": new.incarnation}


def test_the_same_process_again_means_that_messages_may_be_gone() -> None:
    members, _, _ = make()
    hello = make_hello()
    members.handle("env-0", hello)
    assert members.handle("env-0", hello) == [Lost(hello, "its connection broke"), Joined(hello)]


def test_silence_is_a_loss_and_any_message_breaks_it() -> None:
    members, router, clock = make()
    hello = make_hello()
    members.handle("env-0", hello)
    for _ in range(4):
        clock.now += 4
        members.handle("env-0", ask("x"))
        assert members.tick(clock.now) == []
    for _ in range(2):
        clock.now += 4
        assert members.tick(clock.now) == []
    clock.now += 4
    assert members.tick(clock.now) == [Lost(hello, "silent for 10 s", ProcessState.SILENT)]
    assert members.alive == {} and router.routes == {}
    assert members.tick(clock.now) == []


def test_our_own_absence_is_not_their_silence() -> None:
    members, _, clock = make()
    members.handle("env-0", make_hello())
    clock.now += 1000
    assert members.tick(clock.now) == []
    clock.now += 4
    assert members.tick(clock.now) == []


def test_bye_and_exit_are_losses_of_that_process_only() -> None:
    members, _, _ = make()
    worker, supervisor = make_hello(), make_hello("supervisor", role="supervisor")
    members.handle("env-0", worker)
    members.handle("supervisor", supervisor)
    assert members.handle("supervisor", Exited("env-0", "an earlier one", 1)) == []
    assert members.handle("supervisor", Exited("env-0", worker.incarnation, -9)) == [
        Lost(worker, "exited with code -9")
    ]
    assert members.handle("supervisor", Exited("env-0", worker.incarnation, -9)) == []
    assert members.handle("supervisor", Bye("done")) == [Lost(supervisor, "said bye: done")]
    assert members.lose("env-0", "again") == []


def test_who_leaves_because_nothing_is_to_be_done_is_not_lost() -> None:
    members, _, _ = make()
    reward = make_hello("reward-job-1", role="reward")
    members.handle("reward-job-1", reward)
    (gone,) = members.handle("reward-job-1", Bye("done", is_leaving=True))
    assert gone == Lost(reward, "said bye: done", ProcessState.LEFT)


def test_messages_of_the_unknown_change_nothing() -> None:
    members, router, _ = make()
    assert members.handle("env-9", Heartbeat(0.0)) == []
    assert members.handle("env-9", Bye("")) == [] and router.sent == []


names = st.sampled_from(["env-0", "engine-0", "reward-0"])
incarnations = st.sampled_from(["a", "b", "c"])


class MembersMachine(RuleBasedStateMachine):
    """Joined and Lost alternate per name, the routes are those of the living, the silent are found."""

    def __init__(self) -> None:
        super().__init__()
        self.members, self.router, self.clock = make()
        self.present: dict[str, Hello] = {}

    def apply(self, events: list[Joined | Lost]) -> None:
        for event in events:
            name = event.hello.name
            if isinstance(event, Joined):
                assert name not in self.present
                self.present[name] = event.hello
            else:
                assert self.present.pop(name) == event.hello

    @rule(name=names, incarnation=incarnations, attempt=st.sampled_from([1, 1, 0]))
    def hello(self, name: str, incarnation: str, attempt: int) -> None:
        self.apply(self.members.handle(name, make_hello(name, incarnation=incarnation, attempt=attempt)))

    @rule(name=names, message=st.sampled_from([Heartbeat(1.0), ask("x"), Bye("x")]))
    def message(self, name: str, message: Message) -> None:
        self.apply(self.members.handle(name, message))

    @rule(teller=names, name=names, incarnation=incarnations)
    def exited(self, teller: str, name: str, incarnation: str) -> None:
        self.apply(self.members.handle(teller, Exited(name, incarnation, 1)))

    @rule(seconds=st.floats(0, SILENCE_S / 2))
    def tick(self, seconds: float) -> None:
        self.clock.now += seconds
        self.apply(self.members.tick(self.clock.now))

    @rule()
    def long_silence(self) -> None:
        for _ in range(5):
            self.tick(0.49 * SILENCE_S)  # half of it may be more than half of it in floats
        assert self.present == {}

    @invariant()
    def views_agree(self) -> None:
        assert self.members.alive == self.present
        assert self.router.routes == {name: hello.incarnation for name, hello in self.present.items()}


TestMembersMachine = MembersMachine.TestCase
TestMembersMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
