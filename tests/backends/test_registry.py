"""Which kinds there are, and what becomes of a package whose declaration is no good."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.backends import registry
from rollart_hpc.errors import SiteError, UserError

HEAVY = ("torch", "transformers", "vllm", "megatron")
GOOD = """
from rollart_hpc.backends.declaration import Backend

ENGINE = Backend(role="engine", kind="{kind}", summary="a test", make="{module}:make", modules=("{module}_lacks",))
"""
Add = Callable[..., None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Install a distribution with one module and one engine."""
    before = set(sys.modules)

    def add(name: str, kind: str, code: str = GOOD) -> None:
        site = tmp_path / name
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(code.replace("{kind}", kind).replace("{module}", name))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[rollart_hpc.engines]\n{kind} = {name}:ENGINE\n")
        monkeypatch.syspath_prepend(site)
        forget()

    forget()
    yield add
    for name in set(sys.modules) - before:
        del sys.modules[name]
    monkeypatch.undo()
    forget()


def forget() -> None:
    registry._sources.cache_clear()
    registry._found.cache_clear()


def refused(kind: str) -> str:
    with pytest.raises(UserError) as caught:
        registry.find("engine", kind)
    return str(caught.value)


def test_ours_are_declared_without_torch() -> None:
    code = (
        "import sys; from rollart_hpc.backends import registry;"
        "found = [(b.role, b.kind) for role in ('engine', 'trainer') for b in registry.declared(role)];"
        f"print(found, [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kinds = [("engine", "torch"), ("engine", "vllm"), ("trainer", "fsdp"), ("trainer", "megatron")]
    assert done.stdout.strip() == f"{kinds} []"


def test_another_packages_kind_is_found_beside_ours(add: Add) -> None:
    add("mine_pkg", "mine")
    assert registry.kinds("engine") == {"torch": "rollart-hpc", "vllm": "rollart-hpc", "mine": "mine_pkg 1.2"}
    assert registry.find("engine", "mine").make == "mine_pkg:make"
    assert "mine" not in registry.kinds("trainer")


def test_an_unknown_kind_is_told_all_others_and_their_origin(add: Add) -> None:
    add("mine_pkg", "mine")
    said = refused("nime")
    assert "there is no engine 'nime'" in said
    assert "torch (from rollart-hpc), vllm (from rollart-hpc), mine (from mine_pkg 1.2)" in said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "can't be imported: ZeroDivisionError"),
        ("", "can't be imported: AttributeError"),
        ("ENGINE = 3", "is int, not a Backend"),
        (GOOD.replace("{kind}", "other"), "declares engine other"),
        (f"import jax\n{GOOD}", "imports jax; import it in the module of `make`"),
        (GOOD.replace("{module}:make", "make"), "is not of the form package.module:name"),
    ],
)
def test_a_bad_declaration_is_told_to_who_asks_for_it(add: Add, tmp_path: Path, code: str, said: str) -> None:
    add("bad_pkg", "bad", code)
    (tmp_path / "bad_pkg" / "jax.py").write_text("")
    text = refused("bad").replace(" -> ", "; ").replace("\n", "; ")
    assert "engine bad of bad_pkg 1.2" in text and "uninstall bad_pkg" in text
    assert said.partition("; ")[0] in text and said.partition("; ")[2] in text
    assert [backend.kind for backend in registry.declared("engine")] == ["torch", "vllm"]


@pytest.mark.parametrize("kind", ["mine", "torch"])
def test_two_packages_with_one_kind_are_refused(add: Add, kind: str) -> None:
    add("first_pkg", kind)
    add("second_pkg", kind)
    assert f"engine.kind: {kind} is declared by" in refused(kind) and "first_pkg 1.2" in refused(kind)
    assert registry.find("engine", "vllm").kind == "vllm"


def test_what_is_missing_where_it_runs_is_named_with_the_fix(add: Add) -> None:
    add("mine_pkg", "mine")
    backend = dataclasses.replace(registry.find("engine", "mine"), modules=("nowhere",), install="pip install nowhere")
    with pytest.raises(SiteError, match="mine, but nowhere is not installed") as caught:
        registry.load(backend, "nowhere.engine:make")
    assert caught.value.fix == "pip install nowhere"
    with pytest.raises(ModuleNotFoundError):  # a defect, not a missing requirement
        registry.load(backend, "elsewhere.engine:make")
