"""The closed schema of a site file: what hardware there is and how to use it. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollart_hpc.config.schema import key
from rollart_hpc.hardware import CLASSES, DEVICES


@dataclass
class ClassConfig:
    """One hardware class of the site."""

    device: str = key("", "device of the class, for its figures; empty = no GPU", choices=("", *DEVICES))


@dataclass
class SiteConfig:
    """A file in configs/sites, or your own."""

    name: str = key("local", "name of the site")
    launcher: str = key("local", "how processes are started", choices=("local",))
    host: str = key("127.0.0.1", "address the controller listens on and data planes use")
    classes: dict[str, ClassConfig] = field(
        default_factory=lambda: {name: ClassConfig() for name in CLASSES},
        metadata={"help": "hardware classes of the site", "names": CLASSES},
    )
    defaults: dict[str, Any] = key({}, "keys of the run file that hold at this site unless the run file sets them")
