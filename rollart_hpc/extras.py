"""Optional dependencies. Finds missing ones without importing them, and says how to install them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from rollart_hpc.errors import SiteError


class Need(NamedTuple):
    modules: Sequence[str]
    extra: str = ""  # extra of rollart-hpc that installs them
    install: str = ""  # how to install them otherwise


TRAIN = Need(("torch", "transformers", "safetensors"), "train")  # relays and the base model need these with any backend


def need(*wanted: Need) -> None:
    missing = {each: absent for each in wanted if (absent := [name for name in each.modules if not find_spec(name)])}
    if missing:
        names = dict.fromkeys(name for absent in missing.values() for name in absent)
        fix = how_to_install((each.extra for each in missing), (each.install for each in missing))
        raise SiteError(f"not installed: {', '.join(names)}", fix)


def how_to_install(extras: Iterable[str], others: Iterable[str] = ()) -> str:
    wanted = ",".join(dict.fromkeys(filter(None, extras)))
    return "; ".join(filter(None, [install(wanted) if wanted else "", *dict.fromkeys(others)]))


def install(extras: str) -> str:
    return f"in the checkout of rollart-hpc: pip install '.[{extras}]'"
