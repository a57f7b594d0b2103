"""A new run from a checkpoint of another one. Owns what is taken over: base model, checkpoint, lineage.

The new run is complete before it starts: to start it is to resume it. Its ledger begins with a line that names the run
and the step it comes from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rollart_hpc.checkpoint_dirs import check_sizes
from rollart_hpc.config.fixed import find_fixed
from rollart_hpc.config.load import change
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import ConfigError, SiteError, UserError
from rollart_hpc.files import append_line, point
from rollart_hpc.launch.changes import differences
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run
from rollart_hpc.observe import ledger, lineage
from rollart_hpc.rundir import Checkpoint, RunDir

_OWN = ("name", "site")  # fixed in a run, but a fork is another run


def forked_config(source: RunDir, step: int, overrides: Sequence[str]) -> tuple[RunConfig, list[str]]:
    """The configuration of the new run, and warnings. Raises if a key must stay as it is."""
    old = read_resolved(source.config)
    what = f"fork {source.path}"
    new, warnings = change(old, [f"name={old.name}-fork", *overrides], what)
    changed = {key: after for key, (_, after) in differences(old, new).items() if key not in _OWN}
    problems = list(find_fixed(old, changed, has_checkpoint=True))
    if new.steps <= step:
        problems.append(f"steps={new.steps}: the checkpoint has done {step} already; add e.g. steps={2 * step}")
    if problems:
        raise ConfigError(what, problems)
    return new, warnings


def fork(source: RunDir, checkpoint: Checkpoint, target: RunDir, config: RunConfig, site: SiteConfig) -> None:
    """Make the directory of the new run, or nothing."""
    head = check_sizes(checkpoint.path)
    plan = make_plan(config, site)
    create_run(target, config, site, plan)
    try:
        _take_model(source.model, target.model)
        _take_checkpoint(source, checkpoint, target)
        digest = lineage.digest_of(source.ledger, checkpoint.step, int(head.get("attempt", 0)))
        began = ledger.Forked(0, checkpoint.step, digest, source.run_id, str(source.path))
        append_line(target.ledger, ledger.encode(began).decode(), sync=True)
    except BaseException:
        shutil.rmtree(target.path, ignore_errors=True)
        raise


def _take_checkpoint(source: RunDir, checkpoint: Checkpoint, target: RunDir) -> None:
    """Complete, or a UserError: a run that is up may remove it meanwhile."""
    try:
        shutil.copytree(checkpoint.path, target.checkpoint(checkpoint.step), copy_function=_link)
        check_sizes(target.checkpoint(checkpoint.step))
    except (shutil.Error, FileNotFoundError, SiteError):
        if checkpoint.path.exists():
            raise
        listed = ", ".join(str(each.step) for each in source.committed_checkpoints())
        what = f"{source.path} has removed its checkpoint of step {checkpoint.step} meanwhile"
        raise UserError(what, f"choose one of {listed}; checkpoint.keep says how many a run keeps") from None


def _take_model(source: Path, target: Path) -> None:
    """A link to a directory of the user's is made again; a model of the run's own is copied."""
    if source.is_symlink():
        point(target, source.resolve())
    else:
        shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    """Files of checkpoints never change, so on one file system both runs can share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
