"""Is there room left on this machine: disk, shared memory, memory? Owns the levels and the words; frees nothing.

Reads only what costs microseconds (statvfs, /proc/meminfo, the control group), so it can be asked every second. What
the run itself uses is added up only when there is something to tell. Quotas show only when a write fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FULL_BYTES = 64 << 20  # with less than this, logs and status can't be written for long
LOW_SHARE, MOST_LOW_BYTES = 0.02, 10 << 30
WALK_S = 1.0  # time for adding up what the run uses


class Room(NamedTuple):
    free: int
    total: int


@dataclass
class Resource:
    """Something that can run out. `need`: bytes that the run wants soon; `users`: who has the rest, in words."""

    what: str
    look: Callable[[], Room | None]
    fix: str
    need: Callable[[], tuple[int, str]] = lambda: (0, "")
    users: Callable[[], str] = lambda: ""
    level: int = field(default=0)  # 0 good, 1 low, 2 full


def watch(resources: list[Resource]) -> Iterator[str]:
    """What the user must know now: a line when a resource gets worse, and one when it is good again."""
    for resource in resources:
        room = resource.look()
        if room is None:
            continue
        level = _level(room, resource.need()[0], resource.level)
        if level > resource.level:
            yield _told(resource, room, level)
        elif level == 0 < resource.level:
            yield f"{resource.what}: there is room again, {size(room.free)} free"
        resource.level = level if level != 1 or resource.level == 0 else resource.level


def _level(room: Room, need: int, before: int) -> int:
    """It counts as good again only with some room to spare, so that nothing is told twice."""
    low = max(need, min(int(room.total * LOW_SHARE), MOST_LOW_BYTES), FULL_BYTES)
    if room.free < FULL_BYTES:
        return 2
    return int(room.free < (low if before == 0 else low + low // 4))


def _told(resource: Resource, room: Room, level: int) -> str:
    state = "full" if level == 2 else "nearly full"
    need, purpose = resource.need()
    wants = f"; {purpose} needs {size(need)}" if need > room.free else ""
    users = resource.users()
    who = f"; {users}" if users else ""
    left = f"{size(room.free)} of {size(room.total)} free"
    return f"warning: {resource.what} is {state}: {left}{wants}{who} -> {resource.fix}"


# --- looking -------------------------------------------------------------------------------------


def disk(path: Path) -> Room | None:
    """None: it can't be asked."""
    with suppress(OSError):
        found = os.statvfs(path)
        return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
    return None


def memory() -> Room | None:
    """Of the machine, or of this process's control group if that has less."""
    known: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            known[name] = int(value.split()[0]) << 10
    rooms = [Room(known["MemAvailable"], known["MemTotal"])] if "MemAvailable" in known else []
    group = _group_memory(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return min([*rooms, *([group] if group else [])], default=None)


def _group_memory(root: Path, membership: Path) -> Room | None:
    """Version 2 of control groups: the tightest limit on the way up. Cached files count as free."""
    rooms: list[Room] = []
    with suppress(OSError, ValueError):
        own = next(line[3:] for line in [*membership.read_text().splitlines(), "0::/"] if line.startswith("0::"))
        place = root / own.lstrip("/")
        for each in (place, *place.parents):
            if not each.is_relative_to(root):
                break
            with suppress(OSError, ValueError):
                limit = int((each / "memory.max").read_text())
                used = int((each / "memory.current").read_text())
                rooms.append(Room(max(0, limit - used + _cached(each)), limit))
    return min(rooms, default=None)


def _cached(group: Path) -> int:
    entries = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return next((int(value) for name, value in entries if name == "inactive_file"), 0)


def used_below(path: Path) -> dict[str, int]:
    """Bytes by entry of this directory, as far as they can be added up in a second."""
    found: dict[str, int] = {}
    give_up_s = time.monotonic() + WALK_S
    with suppress(OSError):
        for entry in os.scandir(path):
            found[entry.name] = 0 if entry.is_dir(follow_symlinks=False) else entry.stat(follow_symlinks=False).st_size
            for folder, _, names in os.walk(entry.path):  # nothing below a file
                for name in names:
                    with suppress(OSError):
                        found[entry.name] += os.lstat(os.path.join(folder, name)).st_size
                if time.monotonic() > give_up_s:
                    return found
    return found


def listed(uses: dict[str, int], most: int = 3) -> str:
    """checkpoints 2.1 GB, traces 40.0 MB"""
    largest = sorted(uses.items(), key=lambda use: -use[1])[:most]
    return ", ".join(f"{name} {size(used)}" for name, used in largest if used)


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def size(num_bytes: int) -> str:
    """
    >>> size(2_500_000_000), size(704)
    ('2.5 GB', '704 B')
    """
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"
