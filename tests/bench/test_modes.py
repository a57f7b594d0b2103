"""The comparison of the modes: its arithmetic and what it refuses. `make acceptance` makes it for real."""

from __future__ import annotations

import json

import pytest

from rollart_hpc.bench.modes import Row, Settings, as_json, table
from rollart_hpc.cli.main import main
from rollart_hpc.config.modes import Mode
from rollart_hpc.errors import UserError

ROW = Row(0.15, {"sync": 4.0, "sync_plus": 2.0, "one_off": 3.2, "areal": 1.6, "rollart": 1.0})


def test_a_row_compares_with_sync() -> None:
    assert ROW.speedup_over_sync == {"sync": 1.0, "sync_plus": 2.0, "one_off": 1.25, "areal": 2.5, "rollart": 4.0}
    assert ROW.trajectory_over_batched == 2.0


def test_the_table_has_a_line_per_spread() -> None:
    head, *lines = table([ROW, Row(0.3, dict.fromkeys(Mode, 1.0))]).splitlines()
    assert head.split() == ["latency", "std", *Mode, "traj/batched"]
    assert lines[0].split() == ["0.15", "s", *(f"{ROW.speedup_over_sync[mode]:.2f}x" for mode in Mode), "2.00x"]
    assert lines[1].split() == ["0.30", "s", *["1.00x"] * 6]
    assert len({len(line) for line in (head, *lines)}) == 1


def test_json_holds_what_the_table_shows() -> None:
    found = json.loads(as_json(Settings(mean_s=0.2), [ROW]))
    assert found == {"bench": "modes", "mean_s": 0.2, "rows": [ROW.as_dict()]}


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 1}, {"repeats": 0}, {"mean_s": -0.1}, {"stds_s": (0.1, -1.0)}, {"stds_s": (float("nan"),)},
     {"mean_s": float("inf")}, {"stds_s": ()}],
)  # fmt: skip
def test_what_can_t_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as refused:
        Settings(**wrong)  # type: ignore[arg-type]
    assert refused.value.fix


@pytest.mark.parametrize("arguments", [["--steps", "1"], ["--repeats", "0"], ["--mean", "-1"], ["--std", "0.1", "-1"]])
def test_it_is_refused_before_the_first_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "modes", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("rollart-hpc: ") and "runs of" not in said.err
