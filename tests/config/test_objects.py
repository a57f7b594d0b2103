from __future__ import annotations

from pathlib import Path

import pytest

from rollart_hpc.config.objects import resolve
from rollart_hpc.errors import UserError


def test_modules_and_files(tmp_path: Path) -> None:
    assert resolve("collections:OrderedDict").__name__ == "OrderedDict"
    file = tmp_path / "with space.py"
    file.write_text("from dataclasses import dataclass\n@dataclass\nclass Thing:\n    x: int = 1\n")
    thing = resolve(f"{file}:Thing")
    assert thing().x == 1 and resolve("with space.py:Thing", tmp_path) is thing


@pytest.mark.parametrize(
    ("reference", "words"),
    [("nothing", "is not a reference"), (":Thing", "is not a reference"), ("collections:", "is not a reference"),
     ("no_such_module_here:Thing", "there is no module no_such_module_here"),
     ("collections.missing:Thing", "there is no module collections.missing"),
     ("collections:Missing", "has no Missing"), ("collections:abc", "not a class or function"),
     ("/no/such/file.py:Thing", "there is no file /no/such/file.py")],
)  # fmt: skip
def test_clear_errors(reference: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(reference)


def test_broken_modules(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('oops')")
    (tmp_path / "imports.py").write_text("import no_such_module_here")
    (tmp_path / "syntax.py").write_text("def")
    for name, words in [
        ("raises", "RuntimeError: oops"),
        ("imports", "no_such_module_here"),
        ("syntax", "SyntaxError"),
    ]:
        with pytest.raises(UserError, match=words):
            resolve(f"{name}.py:Thing", tmp_path)
