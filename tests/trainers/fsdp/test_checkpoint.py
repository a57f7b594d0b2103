from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from rollart_hpc.weights.digest import digest
from tests.trainers.plain import make_config, make_groups, make_model


@pytest.fixture
def trained(model_dir: Path, world: World) -> FsdpTrainer:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    for seed in range(2):
        trainer.accumulate(make_groups(seed))
        trainer.step()
    return trainer


@pytest.fixture
def fresh(model_dir: Path, world: World) -> FsdpTrainer:
    return FsdpTrainer(make_config(), model_dir, world)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_loading_restores_weights_optimizer_and_version_bit_for_bit(
    trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path
) -> None:
    trained.save(tmp_path / "c")
    fresh.load(tmp_path / "c")
    assert (fresh.version, fresh.digest) == (2, trained.digest)
    for (name, a), (_, b) in zip(trained.export(), fresh.export(), strict=True):
        assert torch.equal(a, b), name
    for seed in range(2, 4):  # the optimizer's moments and the schedule show in later steps
        for trainer in (trained, fresh):
            trainer.accumulate(make_groups(seed))
        assert trained.step() == fresh.step()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which no checkpoint has a place, where root may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_with_what_is_missing(trained: FsdpTrainer, small_disk: Path) -> None:
    with pytest.raises(
        SiteError, match=r"the disk is full: can't write .*/small/c \(.* KB were to be written, "
    ) as caught:
        trained.save(small_disk / "c")
    assert "are missing)" in caught.value.what and "free some space" in caught.value.fix


def test_saving_does_not_change_the_trainer(trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path) -> None:
    for seed in range(2):
        fresh.save(tmp_path / str(seed))
        fresh.accumulate(make_groups(seed))
        fresh.step()
    assert fresh.digest == trained.digest


def test_a_checkpoint_before_the_first_step(trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path) -> None:
    fresh.save(tmp_path / "c")
    trained.load(tmp_path / "c")
    assert (trained.version, trained.digest) == (0, fresh.digest)
    for trainer in (trained, fresh):
        trainer.accumulate(make_groups(0))
    assert trained.step() == fresh.step()


def test_loading_forgets_what_was_accumulated(trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path) -> None:
    trained.save(tmp_path / "c")
    fresh.accumulate(make_groups(5))
    fresh.load(tmp_path / "c")
    for trainer in (trained, fresh):
        trainer.accumulate(make_groups(2))
    assert trained.step() == fresh.step()


def test_files_are_private(trained: FsdpTrainer, tmp_path: Path) -> None:
    trained.save(tmp_path / "c")
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "c").iterdir()} == {"0o600"}


@pytest.mark.parametrize("pattern", ["__0_*.distcp", ".metadata", "files_0.json", "trainer.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "remove"])
def test_damage_is_found_and_nothing_is_loaded(
    pattern: str, harm: str, trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path
) -> None:
    trained.save(tmp_path / "c")
    victim = next((tmp_path / "c").glob(pattern))
    if harm == "flip" and victim.suffix == ".json":
        victim.write_text(victim.read_text().replace("e", "f", 1))
    elif harm == "flip":
        flip_a_bit(victim)
    elif harm == "cut":
        victim.write_bytes(victim.read_bytes()[:-7])
    elif harm == "empty":
        victim.write_bytes(b"")
    else:
        victim.unlink()
    before = fresh.digest
    with pytest.raises(SiteError, match=r"checkpoint .* is damaged or incomplete") as caught:
        fresh.load(tmp_path / "c")
    assert "the one before" in str(caught.value)
    assert (fresh.version, digest(fresh.export())) == (0, before)


def test_a_directory_that_is_missing(fresh: FsdpTrainer, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"trainer\.json is missing"):
        fresh.load(tmp_path / "nothing")


def test_a_checkpoint_of_another_format(trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path) -> None:
    trained.save(tmp_path / "c")
    mark = tmp_path / "c" / "trainer.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"format": 99}))
    with pytest.raises(SiteError, match="format 99"):
        fresh.load(tmp_path / "c")


def test_a_checkpoint_of_another_model(trained: FsdpTrainer, world: World, tmp_path: Path) -> None:
    trained.save(tmp_path / "c")
    other = FsdpTrainer(make_config(), make_model(tmp_path / "m", hidden_size=16), world)
    with pytest.raises(SiteError, match="checkpoint"):
        other.load(tmp_path / "c")


def test_weights_that_differ_from_the_digest(trained: FsdpTrainer, fresh: FsdpTrainer, tmp_path: Path) -> None:
    trained.save(tmp_path / "c")
    head = msgspec.json.decode((tmp_path / "c" / checksums.HEAD).read_bytes(), type=checksums.Head)
    checksums.write_head(tmp_path / "c", msgspec.structs.replace(head, digest="0" * 32, checksum=""))
    with pytest.raises(SiteError, match="expected 0000"):
        fresh.load(tmp_path / "c")


def test_a_disk_that_can_not_be_written(trained: FsdpTrainer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SiteError, match="file"):
        trained.save(tmp_path / "file" / "c")
