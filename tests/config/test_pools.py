"""Pools under names of the user's own, and the classes of a site that a run uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_all
from rollart_hpc.config.pools import engine_of, pools_for, pools_with
from rollart_hpc.config.resolved import read_resolved, write_resolved
from rollart_hpc.config.schema import PoolConfig, RunConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.flow.rules import rules_of

Write = Callable[[str, str], Path]
SITE = """
launcher: slurm
classes:
  fat: {partition: fat, cpus: 16, max_minutes: 60}
  thin: {partition: thin, cpus: 16, max_minutes: 60}
  h800: {partition: h800, gpu: h800, gpus: 8, cpus: 16}
  h20: {partition: h20, gpu: h20, gpus: 8, cpus: 16}
  l40s: {partition: l40s, gpu: l40s, gpus: 4, cpus: 16}
"""
RUN = """
tasks:
  tasks/lake.yaml: {affinity: compute}
"""
CPUS = ["controller.class=fat", "env.class=thin", "reward.class=thin", "trainer.class=h800"]


def problems(*arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_all(*arguments)  # type: ignore[arg-type]
    return caught.value.problems


def test_a_pool_overrides_settings_of_its_engines(write: Write) -> None:
    run = write("r.yaml", RUN + "engine: {kind: vllm, options: {a: 1, b: 2}, max_running: 8}\n")
    config = load(run, ["pools.fast.engine={dtype: bfloat16, max_running: 4, options: {b: 3}}"])
    fast, other = engine_of(config, "fast"), engine_of(config, "other")
    assert (fast.dtype, fast.max_running, fast.options, fast.kind) == ("bfloat16", 4, {"a": 1, "b": 3}, "vllm")
    assert other == config.engine and config.engine.max_running == 8


def test_affinity_names_a_pool_or_a_profile() -> None:
    pools = {"compute": PoolConfig(), "fast": PoolConfig(profile="compute"), "wide": PoolConfig(profile="bandwidth")}
    config = RunConfig(pools=pools | {"odd": PoolConfig()})
    assert pools_for(config, "any") == ()
    assert pools_for(config, "fast") == ("fast",)
    assert pools_for(config, "compute") == ("compute", "fast", "odd"), "a pool without a profile suits both"
    assert pools_for(config, "bandwidth") == ("wide", "odd")
    assert pools_with(config, "compute") == ("compute", "fast")
    del config.pools["wide"], config.pools["odd"]
    assert pools_for(config, "bandwidth") == ("bandwidth",), "others serve it, as fallbacks"


def test_rules_carry_the_pools_of_every_task(write: Write) -> None:
    pools = "pools: {fast: {profile: compute, elastic: {min: 1, max: 2}, engines: 0}, wide: {profile: bandwidth}, "
    rules = rules_of(load(write("r.yaml", RUN + pools + "none: {engines: 0, profile: any}}\n")))
    assert rules.tasks["lake"].pools == ("fast", "none")
    assert rules.awaited == {"fast", "wide"}
    assert (rules.prefill_pools, rules.decode_pools) == (("fast",), ("wide",))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("tasks: {tasks/lake.yaml: {affinity: fsat}}\npools: {fast: {}}", "no pool 'fsat'; did you mean fast?"),
        ("pools: {any: {}}", "pools.any: a name has only letters"),
        ("pools: {compute: {profile: bandwidth}}", "pools.compute.profile: bandwidth, but the pool is named compute"),
        ("pools: {fast: {elastic: {min: 3, max: 2}}}", "pools.fast.elastic.min: 3 is more than max (2)"),
        ("pools: {fast: {engines: 0}}", "pools: no engines"),
        ("pools: {fast: {engine: {options: {x: 1}}}}", "pools.fast.engine.options.x: engine torch has no options"),
    ],
)  # fmt: skip
def test_mistakes_in_pools(write: Write, lines: str, expected: str) -> None:
    text = lines if lines.startswith("tasks") else RUN + lines
    assert expected in "\n".join(problems(write("r.yaml", text + "\n")))


def test_split_turns_need_engines_that_can_share_kv(write: Write) -> None:
    run = write(
        "r.yaml", RUN + "engine: {kind: vllm}\npools: {a: {profile: compute}, b: {profile: bandwidth}, c: {}}\n"
    )
    split = ["tasks.lake.split=true", "pools.c.tensor_parallel=4"]
    assert load(run, split).pools["c"].tensor_parallel == 4, "c takes no part in it"
    found = problems(run, [*split, "pools.a.tensor_parallel=2", "pools.b.engine.dtype=bfloat16"])
    assert "the same tensor_parallel in pools a, b" in found[0] and "the same dtype in pools a, b" in found[1]


# --- classes -----------------------------------------------------------------------------------


def test_the_site_need_not_say_what_serves_what(write: Write) -> None:
    site, run = (
        write("s.yaml", SITE),
        write("r.yaml", RUN + "pools: {fast: {class: h800}, wide: {class: [h20, l40s]}}\n"),
    )
    assert load(run, CPUS, site).pools["wide"].class_ == ["h20", "l40s"]
    found = problems(run, [], site)
    assert [line.split(":")[0] for line in found] == [
        "controller.class", "trainer.class", "env.class", "reward.class",
    ]  # fmt: skip
    assert "no class of site s serves cpu; choose one of fat, thin, h800" in found[0]


def test_unknown_classes_are_told_at_once_with_the_nearest(write: Write) -> None:
    site = write("s.yaml", SITE)
    run = write("r.yaml", RUN + "pools: {fast: {class: h80}, wide: {}, twice: {class: [h20, h20]}}\n")
    found = "\n".join(problems(run, [*CPUS, "env.class=thick"], site))
    assert "env.class: site s has no class 'thick'; did you mean thin?" in found
    assert "pools.fast.class: site s has no class 'h80'; did you mean h800?" in found
    assert "pools.wide.class: not set" in found and "pools.twice.class: h20, h20 names a class twice" in found


def test_the_profile_of_a_pool_follows_from_its_hardware(write: Write) -> None:
    pools = "{a: {class: h800}, b: {class: h20}, c: {class: l40s}, d: {class: [h20, l40s]}, e: {class: fat}, "
    run = write("r.yaml", RUN + f"pools: {pools}bandwidth: {{class: l40s}}, f: {{class: h20, profile: any}}}}\n")
    served = write("s.yaml", SITE + "serves: {compute: h800, bandwidth: h20}\n")
    found = {name: pool.profile for name, pool in load(run, CPUS, served).pools.items()}
    assert found == {
        "a": "compute", "b": "bandwidth", "c": "compute", "d": "bandwidth", "e": "any", "bandwidth": "", "f": "any",
    }  # fmt: skip
    found = {name: pool.profile for name, pool in load(run, CPUS, write("t.yaml", SITE)).pools.items()}
    assert (found["a"], found["b"], found["c"], found["d"]) == ("bandwidth", "bandwidth", "compute", "any")


def test_names_of_keys_survive_the_resolved_file(write: Write, tmp_path: Path) -> None:
    run = write("r.yaml", RUN + "pools: {fast: {class: h800, engine: {options: {class_: 1}}}}\nengine: {kind: vllm}\n")
    config = load(run, CPUS, write("s.yaml", SITE))
    write_resolved(tmp_path / "config.yaml", config)
    text = (tmp_path / "config.yaml").read_text()
    assert "class: thin" in text and "class_: 1" in text and read_resolved(tmp_path / "config.yaml") == config
