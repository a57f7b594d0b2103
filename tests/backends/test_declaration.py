"""A declaration that can't be right is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from rollart_hpc.backends.declaration import Backend


def declare(**changes: Any) -> Backend:
    fields: dict[str, Any] = {"role": "engine", "kind": "mine", "summary": "a test", "make": "package.module:make"}
    return Backend(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"role": "relay"}, "role must be one of engine, trainer"),
        ({"kind": "my engine"}, "kind may contain only"),
        ({"make": "package.module"}, "make: 'package.module' is not of the form package.module:name"),
        ({"raw": "module:"}, "raw: 'module:' is not of the form"),
        ({"can": frozenset({"fly", "split"})}, "can: unknown fly; legal: split, "),
        ({"role": "trainer", "can": frozenset({"split"})}, "can: unknown split; legal: ranks, "),
        ({"options": dict}, "options must be a dataclass"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="declaration of") as caught:
        declare(**changes)
    assert said in str(caught.value)


def test_the_least_that_is_needed() -> None:
    assert not declare().can and not declare().is_forkable and declare().options is None
