"""The core by example: which engine serves a turn."""

from __future__ import annotations

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.rules import TaskRules
from rollart_hpc.types import WeightsId
from tests.flow.scene import Scene


def test_requests_go_to_the_pool_of_the_task():
    scene = Scene(tasks={"a": TaskRules(1, ("compute",)), "b": TaskRules(1, ("bandwidth",))})
    for play in scene.take(ev.Play):
        request = scene.turn(play)
        assert request.engine == {"a": "engine-c", "b": "engine-b"}[play.task]


def test_an_empty_pool_falls_back_and_comes_back():
    scene = Scene()
    first, second, third, *_ = scene.take(ev.Play)
    scene.do(ev.Lost("engine-c"))
    assert scene.turn(first).engine == "engine-b"
    assert scene.core.tally.fallbacks == 1
    scene.do(ev.Joined("engine-c", "engine", pool="compute", capacity=9))
    assert not [c for c in scene.do(ev.TurnWanted(second.trajectory, 0, 0)) if isinstance(c, ev.Generate)], "no weights"
    scene.do(ev.Installed("engine-c", WeightsId(1, 0)))
    assert scene.turn(third).engine == "engine-c"
    assert scene.turn(first, turn=1).engine == "engine-c", "the fallback is undone"


def test_a_trajectory_stays_with_the_engine_that_holds_its_prefix():
    scene = Scene(engines=(("e0", "compute"), ("e1", "compute")))
    for play in scene.take(ev.Play):
        home = scene.turn(play).engine
        assert {scene.turn(play, turn=t).engine for t in (1, 2, 3)} == {home}


def test_an_engine_too_far_behind_gets_no_requests():
    scene = Scene(alpha=0, engines=(("engine-c", "compute"),))
    scene.do(ev.BatchWanted(0))
    for play in scene.take(ev.Play):
        scene.finish(play)
    scene.do(ev.Committed(1))
    scene.check_waits_for(WeightsId(1, 1), "engine-c")


def test_a_pool_whose_first_engine_is_yet_to_come_is_waited_for():
    scene = Scene(engines=(("engine-b", "bandwidth"),), awaited=frozenset({"compute", "bandwidth"}))
    play = scene.take(ev.Play)[0]
    assert not [c for c in scene.do(ev.TurnWanted(play.trajectory, 0, 0)) if isinstance(c, ev.Generate)]
    scene.do(ev.Joined("engine-c", "engine", pool="compute", capacity=9), ev.Installed("engine-c", WeightsId(1, 0)))
    assert [c.engine for c in scene.take(ev.Generate)] == ["engine-c"]
    assert scene.core.tally.fallbacks == 0


THREE = (("f0", "fast"), ("f1", "fast"), ("s0", "spare"), ("w0", "wide"))


def test_pools_of_one_profile_share_its_tasks_and_a_named_pool_has_its_own():
    """`a` wants a profile that two pools have, `b` one pool by name."""
    tasks = {"a": TaskRules(1, ("fast", "spare")), "b": TaskRules(1, ("wide",))}
    scene = Scene(engines=THREE, tasks=tasks, groups_per_step=6)
    used: dict[str, list[str]] = {"a": [], "b": []}
    for play in scene.take(ev.Play):
        used[play.task].append(scene.turn(play).engine)
    shares = [used["a"].count(engine) for engine in ("f0", "f1", "s0")]
    assert sum(shares) == len(used["a"]) and max(shares) - min(shares) <= 1, "all its engines are equally full"
    assert set(used["b"]) == {"w0"}
    assert (scene.core.tally.fallbacks, scene.core.tally.stray_requests) == (0, 0)


def test_a_task_falls_back_only_when_all_its_pools_are_gone():
    scene = Scene(engines=THREE, tasks={"a": TaskRules(1, ("fast", "spare"))})
    first, second, third, *_ = scene.take(ev.Play)
    scene.do(ev.Lost("f0"), ev.Lost("f1"))
    assert scene.turn(first).engine == "s0" and scene.core.tally.fallbacks == 0
    scene.do(ev.Lost("s0"))
    assert scene.turn(second).engine == "w0" and scene.core.tally.fallbacks == 1
    scene.do(ev.Joined("s0", "engine", pool="spare", capacity=9), ev.Installed("s0", WeightsId(1, 0)))
    assert scene.turn(third).engine == "s0" and scene.turn(second, turn=1).engine == "s0", "the fallback is undone"
    assert scene.core.tally.stray_requests == 0


def test_split_turns_use_all_pools_of_either_profile():
    sides = {"prefill_pools": ("fast", "spare"), "decode_pools": ("wide", "tail")}
    engines = (*THREE, ("t0", "tail"))
    scene = Scene(engines=engines, tasks={"a": TaskRules(1, split=True)}, groups_per_step=6, **sides)
    prefilled, decoded = set(), set()
    for play in scene.take(ev.Play):
        prefill = wanted(scene, play)
        (decode,) = [c for c in scene.do(ev.Prefilled(prefill.request, "kv", 7)) if isinstance(c, ev.Generate)]
        scene.do(ev.Generated(decode.request, 0, 0, 1, 3))
        prefilled.add(prefill.engine)
        decoded.add(decode.engine)
    assert prefilled == {"f0", "f1", "s0"} and decoded == {"w0", "t0"}
    assert scene.core.tally.fallbacks == 0


SPLIT = {"a": TaskRules(1.0, ("compute",), split=True)}


def wanted(scene: Scene, play: ev.Play) -> ev.Generate:
    (request,) = [c for c in scene.do(ev.TurnWanted(play.trajectory, play.issue, 0)) if isinstance(c, ev.Generate)]
    return request


def test_a_split_turn_is_prefilled_in_one_pool_and_decoded_in_the_other():
    scene = Scene(tasks=SPLIT)
    play = scene.groups()[0][0]
    prefill = wanted(scene, play)
    assert (prefill.engine, prefill.prefill_only, prefill.kv) == ("engine-c", True, "")
    (decode,) = [c for c in scene.do(ev.Prefilled(prefill.request, "handle", 7)) if isinstance(c, ev.Generate)]
    assert (decode.engine, decode.prefill_only, decode.kv) == ("engine-b", False, "handle")
    (answer,) = [c for c in scene.do(ev.Generated(decode.request, 0, 0, 1, 3)) if isinstance(c, ev.Deliver)]
    assert answer.trajectory == play.trajectory
    tally = scene.core.tally
    assert (tally.split_requests, tally.split_fallbacks, tally.fallbacks, tally.stray_requests) == (1, 0, 0, 0)
    assert tally.tasks["a"].prefill_tokens == 8
    again = wanted(scene, play)  # the next turn begins with a prefill
    assert again.prefill_only


def test_without_one_of_its_pools_a_split_turn_is_served_as_a_whole():
    scene = Scene(tasks=SPLIT)
    play, other = scene.groups()[0][:2]
    prefill = wanted(scene, play)
    scene.do(ev.Lost("engine-b"))
    (whole,) = [c for c in scene.do(ev.Prefilled(prefill.request, "handle")) if isinstance(c, ev.Generate)]
    assert (whole.engine, whole.prefill_only, whole.kv) == ("engine-c", False, "")
    assert not wanted(scene, other).prefill_only
    assert scene.core.tally.split_fallbacks == 2 and scene.core.tally.split_requests == 0


def test_a_prefill_that_is_lost_is_asked_for_again():
    scene = Scene(engines=(("engine-c", "compute"), ("engine-d", "compute"), ("engine-b", "bandwidth")), tasks=SPLIT)
    play = scene.groups()[0][0]
    prefill = wanted(scene, play)
    (ask,) = [c for c in scene.do(ev.Lost(prefill.engine)) if isinstance(c, ev.AskAgain)]
    assert ask.trajectory == play.trajectory
    assert scene.do(ev.Prefilled(prefill.request, "late")) == []
    assert wanted(scene, play).prefill_only


def test_turns_are_counted_by_pool_whether_they_run_or_wait():
    scene = Scene(engines=(("engine-c", "compute"),), tasks={"a": TaskRules(1, ("compute",)), "b": TaskRules(1)})
    assert scene.core.router.turns() == {"compute": 0}
    plays = scene.take(ev.Play)
    for play in plays:
        scene.do(ev.TurnWanted(play.trajectory, 0, 0))
    assert scene.core.router.turns() == {"compute": len(plays)}


def test_turns_that_no_engine_can_serve_are_counted_for_any_pool():
    scene = Scene(engines=(), tasks={"a": TaskRules(1)}, env_slots=100)
    plays = scene.take(ev.Play)
    for play in plays:
        scene.do(ev.TurnWanted(play.trajectory, 0, 0))
    assert plays and scene.core.router.turns() == {"": len(plays)}
