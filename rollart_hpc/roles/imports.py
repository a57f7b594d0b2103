"""The slow imports of roles with torch. Owns the list by role; backends declare their own."""

from __future__ import annotations

import gc
import importlib
from typing import cast

from rollart_hpc.backends.declaration import BackendRole
from rollart_hpc.backends.registry import find

BASE_MODEL = "base_model"
_OF_ROLE = {
    "relay": ("rollart_hpc.wire.link", "rollart_hpc.weights.relay"),
    "engine": ("rollart_hpc.engines.service", "rollart_hpc.weights.direct"),
    "trainer": ("rollart_hpc.trainers.service", "rollart_hpc.trainers.publish"),
    BASE_MODEL: ("rollart_hpc.trainers.base_model",),  # with the architecture of the model it makes
}


def modules_of(kind: str) -> tuple[str, ...]:
    """The modules of a role, or of a role and its backend: `relay`, `engine.torch`."""
    role, _, backend = kind.partition(".")
    return _OF_ROLE[role] + (find(cast(BackendRole, role), backend).imports if backend else ())


def load(*kinds: str) -> None:
    """Import everything with the garbage collector off, then exempt the modules from it: they stay to the end.

    This saves a tenth of the time here, and later keeps a forked child from touching, and so copying, every page.
    """
    gc.disable()
    for kind in kinds:
        for name in modules_of(kind):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
