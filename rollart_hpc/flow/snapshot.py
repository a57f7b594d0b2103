"""The part of the core that a checkpoint keeps, as plain data. Owns its format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollart_hpc.flow.state import Group, State, Trajectory

if TYPE_CHECKING:
    from rollart_hpc.flow.core import Core

MEMBER_KEYS = ("id", "seed", "sample_seed", "first_version", "last_version", "reward", "success", "turn")


def snapshot_of(core: Core) -> dict[str, Any]:
    complete = sorted(
        (*core.batches.taken.values(), *core.batches.buffer.values()), key=lambda group: group.completed_as
    )
    return {
        "version": core.version,
        "num_groups": core.admission.num_groups,
        "group_index": _resume_index(core),
        "mix": core.mix.snapshot(),
        "tally": core.tally.snapshot(),
        "validations": core.validator.snapshot(),
        "affinity": core.router.affinity.snapshot(),
        "groups": [_group(group) for group in complete],
    }


def _resume_index(core: Core) -> dict[str, int]:
    """The next group index of each task. Incomplete groups are played again after a restore."""
    index = dict(core.admission.next_index)
    for group in core.groups.values():
        if not group.complete:
            index[group.task] = min(index[group.task], group.index)
    return index


def _group(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "task": group.task,
        "index": group.index,
        "members": [{key: getattr(member, key) for key in MEMBER_KEYS} for member in group.members],
    }


def groups_of(saved: list[dict[str, Any]]) -> list[Group]:
    """Buffered groups as they were."""
    return [_restored(data, order) for order, data in enumerate(saved)]


def _restored(data: dict[str, Any], order: int) -> Group:
    # sorts before all groups that complete later
    group = Group(data["id"], data["task"], data["index"], complete=True, completed_as=order - (1 << 30))
    for member in data["members"]:
        trajectory = Trajectory(task=group.task, purpose="train", group=group, state=State.SCORED, **member)
        group.members.append(trajectory)
    return group
