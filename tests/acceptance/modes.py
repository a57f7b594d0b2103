"""The modes under injected environment latency."""

from __future__ import annotations

import json

from rollart_hpc.config.modes import Mode
from rollart_hpc.config.modes import table as modes_table
from tests.acceptance.drive import RESULTS, rollart, table, write_page


def modes() -> bool:
    text = rollart("bench", "modes", "--json")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "modes.json").write_text(text)
    rows, mean_s = json.loads(text)["rows"], json.loads(text)["mean_s"]
    names = list(Mode)
    cells = [
        [f"{row['std_s']:g} s"]
        + [f"{row['speedup_over_sync'][name]:.2f}x" for name in names]
        + [f"{row['trajectory_over_batched']:.2f}x"]
        for row in rows
    ]
    lines = [
        "# The modes under injected environment latency",
        "",
        f"Speed-up over `{Mode.SYNC}` in time per step, with a turn latency of N({mean_s:g} s, std). Real runs of",
        f"the same code, interleaved, on 2 shared CPU cores. The last column is `{Mode.SYNC_PLUS}` over `{Mode.SYNC}`:",
        "trajectory-level over batched environments. `modes.json` has the raw figures. Printed by:",
        "",
        "```",
        "rollart-hpc bench modes",
        "```",
        "",
        *table(["std", *names, "trajectory / batched"], cells),
        "",
        *modes_table(),
    ]
    write_page("modes", lines)
    gains = [row["trajectory_over_batched"] for row in rows]
    return gains[-1] > gains[0] > 1.0
