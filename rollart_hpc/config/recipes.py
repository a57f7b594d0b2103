"""Presets of an algorithm by name. Owns their keys; any key that a file or the command line gives goes before them.

A recipe says what its paper says, with one optimizer update per step unless the paper is about several. Learning rates,
batch sizes and lengths are those of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Keys = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    help: str  # what it is; when to take it
    paper: str
    algorithm: Keys
    task: Keys = field(default_factory=dict)  # keys that each task gets, if its file or the run says nothing else


_K1 = {"kl": 0.001, "kl_estimator": "k1", "kl_in": "reward"}
_OLD = {"decoupled": True}

RECIPES: dict[str, Recipe] = {
    "grpo": Recipe(
        "advantages in units of the group, KL to the base model; the usual start",
        "arXiv 2402.03300",
        {"estimator": "grpo", "loss": "ppo", "aggregation": "sample_mean", "kl": 0.001},
    ),
    "dr_grpo": Recipe(
        "GRPO without its biases to short answers and easy prompts; aggregation_params.length: the longest sample",
        "arXiv 2503.20783",
        {"estimator": "dr_grpo", "loss": "ppo", "aggregation": "constant"},
    ),
    "rloo": Recipe(
        "plain REINFORCE with the other plays as baseline; for fresh data, it clips nothing",
        "arXiv 2402.14740",
        {"estimator": "rloo", "loss": "reinforce", "aggregation": "sample_sum", **_K1},
    ),
    "reinforce_pp": Recipe(
        "advantages whitened over the batch; for groups of one play",
        "arXiv 2501.03262",
        {"estimator": "reinforce_pp", "loss": "ppo", **_K1},
    ),
    "reinforce_pp_baseline": Recipe(
        "the same after the mean of the group; for rewards that differ between prompts",
        "arXiv 2501.03262",
        {"estimator": "reinforce_pp_baseline", "loss": "ppo", **_K1},
    ),
    "lite_ppo": Recipe(
        "mean of the group, deviation of the batch; steadier than GRPO where groups often agree",
        "arXiv 2508.08221",
        {"estimator": "lite_ppo", "loss": "ppo"},
    ),
    "dapo": Recipe(
        "clip-higher, token mean, groups that agree are sampled again, long answers pay; for long answers",
        "arXiv 2503.14476",
        {"estimator": "grpo", "loss": "ppo", "loss_params": {"clip_high": 0.28}, "shaping": {"overlong": {}}},
        {"group_filter": "same_success"},
    ),
    "gspo": Recipe(
        "ratios and clips of whole samples, four updates per step; for experts (MoE)",
        "arXiv 2507.18071",
        {"estimator": "grpo", "loss": "gspo", "aggregation": "sample_mean", "updates": 4, **_OLD},
    ),
    "cispo": Recipe(
        "weights are clipped instead of tokens, so rare tokens keep their gradient; good with old data",
        "arXiv 2506.13585, 2510.13786",
        {"estimator": "lite_ppo", "loss": "cispo", "aggregation": "group_mean"},
    ),
    "topr": Recipe(
        "failures are pushed down only while they are likely; for old data with rewards on both sides of 0",
        "arXiv 2503.14286",
        {"estimator": "grpo", "loss": "topr", "aggregation": "sample_mean"},
    ),
    "kimi": Recipe(
        "a squared pull to the policy before the step instead of clips, four updates per step",
        "arXiv 2501.12599",
        {"estimator": "dr_grpo", "loss": "kimi", "aggregation": "sample_mean", "updates": 4, **_OLD},
    ),
    "raft_pp": Recipe(
        "imitates its own successes and forgets the rest; a simple baseline for rewards of 0 and 1",
        "arXiv 2504.11343",
        {"estimator": "raw", "loss": "raft_pp", "aggregation": "sample_mean"},
    ),
    "ppo": Recipe(
        "a critic gives every token its own advantage, four updates per step; for long plays, if memory allows",
        "arXiv 1707.06347, 1912.09729",
        {"estimator": "gae", "loss": "ppo", "updates": 2, "epochs": 2, "critic": {"warmup_steps": 5}, **_OLD},
    ),
    "gigpo": Recipe(
        "compares turns that saw the same state; for many turns in environments whose states come again",
        "arXiv 2505.10978",
        {"estimator": "gigpo", "loss": "ppo"},
    ),
    "ipa": Recipe(
        "returns, ratios and masks of turns; for many turns with old data",
        "arXiv 2512.24873",
        {
            "estimator": "turn_return",
            "estimator_params": {"baseline": "group"},
            "loss": "topr",
            "loss_params": {"ratio": "turn"},
            "corrections": {"turn_mask": {"low": 0.0, "high": 5.0}},
            **_OLD,
        },
    ),
    "agentic_reinforce": Recipe(
        "REINFORCE on returns of turns, without a baseline; for rewards that are negative for failures",
        "as in ROLL",
        {"estimator": "turn_return", "loss": "reinforce"},
    ),
    "areal": Recipe(
        "ratios to the policy before the step; tokens whose weight for older data exceeds 5 are left out",
        "arXiv 2505.24298",
        {
            "estimator": "grpo",
            "loss": "ppo",
            "corrections": {"token": {"high": 5.0, "how": "mask"}},
            "updates": 4,
            **_OLD,
        },
    ),
    "sapo": Recipe(
        "a smooth gate of the ratio instead of clips",
        "arXiv 2511.20347",
        {"estimator": "grpo", "loss": "sapo", "aggregation": "sample_mean"},
    ),
    "dppo": Recipe(
        "bounds the change of probabilities instead of ratios; good with old data and rare tokens",
        "arXiv 2602.04879",
        {"estimator": "dr_grpo", "loss": "dppo"},
    ),
    "max_rl": Recipe(
        "hard prompts count more: advantages in units of the group's mean; for rewards of 0 and 1",
        "as in prime-rl and SkyRL",
        {"estimator": "max_rl", "loss": "ppo"},
    ),
}


def preset(name: str) -> Keys:
    """The section `algorithm` of a recipe; empty for a name that is none."""
    return dict(RECIPES[name].algorithm) if name in RECIPES else {}


def task_keys(name: str) -> Keys:
    return dict(RECIPES[name].task) if name in RECIPES else {}


def choices() -> dict[str, str]:
    return {"": "none: every part by its own key", **{name: recipe.help for name, recipe in RECIPES.items()}}
