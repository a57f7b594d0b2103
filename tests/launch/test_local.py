"""What a run needs of this machine is looked for before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc import extras
from rollart_hpc.config.load import load_all
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.launcher import NewRun
from rollart_hpc.launch.local import LocalLauncher
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.rundir import RunDir


class NoScreen:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError("nothing is done before")


@pytest.mark.parametrize(
    ("override", "module", "extra"),
    [
        ("engine.kind=vllm", "vllm", "vllm"),
        ("trainer.kind=megatron", "megatron", "megatron"),
        ("trainer.lora.rank=4", "peft", "lora"),
        ("weights.collective=mpi", "mpi4py", "mpi"),
        ("steps=1", "torch", "train"),
    ],
)
def test_what_is_not_installed(
    override: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == module else object())
    loaded = load_all("quickstart", [override])
    new = NewRun(RunDir(tmp_path / "run"), loaded.config, loaded.site, make_plan(loaded.config, loaded.site))
    with pytest.raises(SiteError) as caught:
        LocalLauncher().start(new, NoScreen())  # type: ignore[arg-type]
    assert caught.value.what == f"not installed: {module}" and f"'.[{extra}]'" in caught.value.fix
    assert not (tmp_path / "run").exists()
