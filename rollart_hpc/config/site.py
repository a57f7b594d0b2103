"""The closed schema of a site file: how processes are started there, and what differs for its runs. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollart_hpc.config.schema import key


@dataclass
class SiteConfig:
    """A file in configs/sites, or your own."""

    name: str = key("local", "name of the site")
    launcher: str = key("local", "how processes are started", choices=("local",))
    defaults: dict[str, Any] = key({}, "keys of the run file that hold at this site unless the run file sets them")
