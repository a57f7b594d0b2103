"""TRL's losses and gradients of batches that `against_trl` wrote. Runs in an environment of its own, which has TRL.

python trl_losses.py DIR: reads DIR/batch.pt and the models DIR/policy and DIR/base, writes DIR/trl.pt.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

Batch = dict[str, Any]
PAD = 0


def padded(rows: list[list[float]], *, left: bool, value: float = 0.0) -> torch.Tensor:
    longest = max(map(len, rows))
    filled = [[value] * (longest - len(row)) for row in rows]
    return torch.tensor([pad + row if left else row + pad for row, pad in zip(rows, filled)])


def inputs_of(batch: Batch, reference: torch.nn.Module) -> Batch:
    prompts, answers = batch["prompts"], batch["answers"]
    ones = [[[1] * len(row) for row in rows] for rows in (prompts, answers)]
    inputs = {
        "prompt_ids": padded(prompts, left=True, value=PAD),
        "prompt_mask": padded(ones[0], left=True, value=0),
        "completion_ids": padded(answers, left=False, value=PAD),
        "completion_mask": padded(ones[1], left=False, value=0),
        "advantages": torch.tensor(batch["advantages"]),
        "old_per_token_logps": padded(batch["logprobs"], left=False),
        "num_items_in_batch": torch.tensor(sum(map(len, answers))),
    }
    ids, mask = (torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], dim=1) for x in ("ids", "mask"))
    with torch.no_grad():
        logprobs = reference(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)[:, :-1]
    chosen = logprobs.gather(2, ids[:, 1:, None])[:, -inputs["completion_ids"].size(1) :, 0]
    return {**inputs, "ref_per_token_logps": chosen}


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )


def run(directory: Path, batch: Batch, keys: Batch, length: int) -> tuple[float, dict[str, torch.Tensor]]:
    size = len(batch["answers"])
    config = GRPOConfig(
        output_dir=str(directory / "trl"), use_cpu=True, bf16=False, report_to=[], disable_dropout=True,
        per_device_train_batch_size=size, num_generations=size, max_completion_length=length,
        gradient_checkpointing=False, **keys,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(directory / "policy", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(directory / "base", dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w2"}] * size),
        processing_class=tokenizer(model.config.vocab_size),
    )
    trainer.model.eval()  # its accumulation of gradients over micro-batches is not what is compared
    loss = trainer._compute_loss(trainer.model, inputs_of(batch, base))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    given = torch.load(directory / "batch.pt")
    found = {name: run(directory, case["batch"], case["trl"], given["length"]) for name, case in given["cases"].items()}
    torch.save({"version": importlib.metadata.version("trl"), "found": found}, directory / "trl.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
