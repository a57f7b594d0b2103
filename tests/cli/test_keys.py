"""`rollart-hpc keys` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_everything_a_part_and_one_key(cli: Cli) -> None:
    everything = cli("keys").stdout
    for line in ("RUN FILE", "TASK FILE", "SITE FILE", "  flow.alpha = 1  (integer, at least 0)\n"):
        assert line in everything
    part = cli("keys", "flow").stdout
    assert "flow.group_size = 8" in part and "trainer.lr" not in part
    one = cli("keys", "mode").stdout
    assert "default:  rollart" in one and "sync_plus: staleness bound 0" in one
    task = cli("keys", "tasks.frozenlake.weight").stdout
    assert "file:     task file, as weight; or run file, as tasks.NAME.weight" in task
    assert "classes.NAME.partition" in cli("keys", "--file", "site").stdout


def test_an_unknown_key_is_a_mistake_of_the_user(cli: Cli) -> None:
    done = cli("keys", "flow.alhpa")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no key 'flow.alhpa'\n  -> did you mean flow.alpha" in done.stderr
    assert "did you mean" in json.loads(cli("keys", "flow.alhpa", "--json").stdout)["fix"]


def test_for_scripts(cli: Cli) -> None:
    (key,) = json.loads(cli("keys", "weights.transport", "--json").stdout)
    assert (key["key"], key["files"], key["default"], key["type"]) == ("weights.transport", ["run"], "staged", "text")
    assert key["choices"] == ["staged", "direct"] == list(key["meanings"])
    assert json.loads(cli("keys", "weight", "--json").stdout)[0]["files"] == ["task", "run"]


def test_it_imports_next_to_nothing() -> None:
    code = (
        "import sys; from rollart_hpc.cli.main import main; main(['keys', 'flow.alpha']);"
        "print([m for m in ('torch', 'numpy', 'zmq', 'omegaconf', 'msgspec', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
