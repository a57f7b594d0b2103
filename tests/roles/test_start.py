from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.processes.lifetime import OFFLINE
from rollart_hpc.rundir import RunDir


def test_every_role_stays_offline_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_resolved(run.config, RunConfig())
    code = (
        "import os; from rollart_hpc.roles.start import parse;"
        f"parse('env', ['--run-dir', {str(run.path)!r}]);"
        f"print(*(os.environ[name] for name in {list(OFFLINE)!r}))"
    )
    environment = {key: value for key, value in os.environ.items() if key not in OFFLINE} | {"HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["0", "1"]
