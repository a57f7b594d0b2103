"""The README of an exported model: what it is, where it comes from, what it can do. Reads metrics; writes nothing."""

from __future__ import annotations

from typing import Any

from rollart_hpc import __version__
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.observe import metrics
from rollart_hpc.observe.lineage import ancestors
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import LineKind

_LOAD = {
    False: 'AutoModelForCausalLM.from_pretrained("DIR")',
    True: 'PeftModel.from_pretrained(base, "DIR")',
}


def model_card(run: RunDir, config: RunConfig, step: int, digest: str, *, is_adapter: bool) -> str:
    base = config.model.path or "a tiny model made for these tasks"
    scores = _scores(run, step)
    lines = [
        "---",
        "library_name: peft" if is_adapter else "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [reinforcement-learning, rollart-hpc]",
        "---",
        f"# {config.name}, step {step}",
        "",
        f"{'Adapters' if is_adapter else 'A model'} trained with rollart-hpc {__version__}.",
        "",
        f"- base model: {base}",
        f"- run: {config.name} ({run.run_id}), {step} of {config.steps} steps, mode {config.mode}",
        *(f"- forked from: step {began.forked} of run {began.run} in {began.path}" for began in ancestors(run)),
        f"- tasks: {', '.join(config.tasks)}",
        f"- digest of {'the adapters' if is_adapter else 'the weights, as in ledger.jsonl of the run'}: {digest}",
        f"- load it: `{_LOAD[is_adapter]}`",
        "",
    ]
    if scores:
        lines += ["Validations of the run, on held-out seeds:", ""]
        lines += ["| task | success | reward | plays | step |", "| --- | --- | --- | --- | --- |", *scores, ""]
    else:
        lines += ["The run has not validated this step or an earlier one.", ""]
    return "\n".join(lines)


def _scores(run: RunDir, step: int) -> list[str]:
    """The newest validation of each task up to this step."""
    newest: dict[str, dict[str, Any]] = {}
    for line in metrics.lines(run.metrics):
        if line.get("kind") == LineKind.VALIDATION and line.get("version", step + 1) <= step:
            newest[str(line.get("task"))] = line
    return [
        f"| {task} | {_number(line.get('success'))} | {_number(line.get('reward'))} | {line.get('plays')} "
        f"| {line.get('version')} |"
        for task, line in sorted(newest.items())
    ]


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
