"""Pairs of rates, ours and raw, measured alternately. Owns the reported ratio; does not know what is measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.errors import UserError


def check_model(model: Path | None) -> None:
    """Check the path before anything heavy is imported."""
    if model is not None and not (model / "config.json").is_file():
        raise UserError(f"{model} is not a model directory: it has no config.json", "name a Hugging Face directory")


@dataclass(kw_only=True)
class Pairs:
    ours: list[float] = field(default_factory=list)  # tokens per second
    raw: list[float] = field(default_factory=list)

    @property
    def ratio_to_raw(self) -> float:
        """The median over the pairs, because noise of the machine affects both sides of a pair equally."""
        return statistics.median(ours / raw for ours, raw in zip(self.ours, self.raw, strict=True))

    def json(self, **facts: Any) -> str:
        """`facts`: what was measured, and the settings."""
        rates = {"ratio_to_raw": self.ratio_to_raw, "tokens_per_s": self.ours, "raw_tokens_per_s": self.raw}
        return msgspec.json.format(msgspec.json.encode(facts | rates)).decode()

    def table(self, raw_name: str) -> str:
        lines = [f"{'pair':>5}{'ours, tokens/s':>18}{'raw, tokens/s':>18}{'ratio':>8}"]
        for number, (ours, raw) in enumerate(zip(self.ours, self.raw, strict=True), start=1):
            lines.append(f"{number:>5}{ours:>18.0f}{raw:>18.0f}{ours / raw:>8.3f}")
        return "\n".join([*lines, f"median ratio to {raw_name}: {self.ratio_to_raw:.3f}"])
