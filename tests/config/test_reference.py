"""Every key is known, described, and found."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rollart_hpc.config.check import _leaf_paths
from rollart_hpc.config.key_search import find
from rollart_hpc.config.reference import File, all_keys, sections
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.trainers.fsdp.backend import FsdpOptions
from rollart_hpc.trainers.megatron.backend import MegatronOptions

READ_BEFORE_THE_SCHEMA = {"base", "tasks.NAME.file"}


def paths(found: list) -> list[str]:
    return [key.path for key in found]


@pytest.mark.parametrize(("schema", "files"), [(RunConfig, {File.RUN, File.TASK}), (SiteConfig, {File.SITE})])
def test_every_key_of_the_schema_is_there_once(schema: type, files: set[File]) -> None:
    found = [key.path for key in all_keys() if key.file in files]
    known = {path.removesuffix(".NAME") for path in _leaf_paths(schema)}  # a map of plain values is one key
    if schema is RunConfig:
        known |= {f"trainer.options.{field.name}" for kind in (FsdpOptions, MegatronOptions) for field in fields(kind)}
    assert len(found) == len(set(found)) and set(found) - READ_BEFORE_THE_SCHEMA == known


def test_every_key_and_section_says_what_it_is() -> None:
    for section in sections():
        assert section.help, section.path
        for key in section.keys:
            assert len(key.gist) > 3 and not key.help.endswith("."), key.path
            assert "\n" not in key.help and "  " not in key.help, key.path
            assert set(key.meanings) in (set(), set(key.choices or ())), key.path


def test_defaults_are_legal_and_shown() -> None:
    for key in all_keys():
        assert key.choices is None or key.default in key.choices, key.path
        assert key.low is None or key.default >= key.low, key.path
        assert key.high is None or key.default <= key.high, key.path
        assert key.shown_default, key.path


def test_a_part_a_key_and_everything() -> None:
    assert paths(find("flow.alpha")) == ["flow.alpha"] == paths(find("flow.alpha=2"))
    assert set(paths(find("trainer"))) > set(paths(find("trainer.lora"))) == set(paths(find("trainer.lora.")))
    assert find("") == list(all_keys())
    assert {key.file for key in find("name")} == set(File) and paths(find("name", File.SITE)) == ["name"]


def test_names_stand_for_name() -> None:
    assert paths(find("tasks.lake.weight")) == ["tasks.NAME.weight"] == paths(find("weight"))
    assert paths(find("pools.compute.engines")) == ["pools.NAME.engines"] == paths(find("pools.NAME.engines"))
    assert paths(find("tasks.lake.params.size")) == ["tasks.NAME.params"]
    assert paths(find("serves.cpu")) == ["serves"]
    assert paths(find("pools.fast.class")) == ["pools.NAME.class"] and find("pools.fast.class")[0].default == []
    assert paths(find("pools.fast.engine.dtype")) == ["pools.NAME.engine"]


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        ("flow.alhpa", "did you mean flow.alpha"),
        ("alpha", "did you mean flow.alpha, trainer.lora.alpha?"),
        ("elastic", "did you mean pools.NAME.elastic, reward.elastic?"),
        ("pools.gpu.engine_s", "did you mean pools.NAME.engines"),
        ("steps.x", "did you mean steps"),
        ("zzzz", "legal at the top: base, name, seed"),
    ],
)
def test_an_unknown_prefix_names_the_nearest_keys(prefix: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        find(prefix)
    assert prefix in caught.value.what and hint in caught.value.fix


def test_one_key_in_words() -> None:
    (rate,), (lr,), (mode,) = find("tasks.NAME.trouble.crash_rate"), find("trainer.lr"), find("mode")
    assert (rate.legal, rate.shown_default) == ("number, 0 to 1", "0")
    assert (lr.legal, lr.shown_default) == ("number, at least 0", "0.001")
    assert mode.legal.startswith("one of sync, ") and mode.shown_default == "rollart"
