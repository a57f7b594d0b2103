"""The tiny base model that a run makes itself: knows the format of the tasks' answers, none of their solutions.

A word-level tokenizer over the tasks' own words, a chat template, a two-layer Qwen3, and a short
training on plays whose answers are random but legal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.rundir import RunDir

PAD, UNKNOWN, END, USER, ASSISTANT = SPECIAL = ("<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' + message['content'] + ' <|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
MAX_LENGTH = 512


def make_tiny_model(
    directory: Path, seed: int, environments: list[Any], seconds: float = 15.0, log: Callable[[str], None] = print
) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    rng = random.Random(seed)
    tokenizer = _make_tokenizer(environments)
    model = _make_model(tokenizer.get_vocab_size())
    _learn_format(model, tokenizer, environments, rng, seconds, log)
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _make_tokenizer(environments: list[Any]) -> Tokenizer:
    words = sorted({word for env in environments for seed in range(200) for word in _play_text(env, seed).split()})
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="", cleanup=False)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _make_model(vocabulary: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=MAX_LENGTH, tie_word_embeddings=True,
        initializer_range=0.2, pad_token_id=0, eos_token_id=2, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def _play_text(env: Any, seed: int) -> str:
    rng = random.Random(seed)
    observation, done, parts = env.reset(seed), False, []
    while not done:
        answer = env.legal_answer(rng)
        parts.append(f"{USER} {observation} {END} {ASSISTANT} {answer} {END}")
        turn = env.step(answer)
        observation, done = turn.observation, turn.done
    return " ".join(parts)


def _learn_format(model: Any, tokenizer: Tokenizer, environments: list[Any], rng: random.Random, seconds: float, log: Callable[[str], None]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    began, step = time.monotonic(), 0
    while (spent := time.monotonic() - began) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 20) * (1 - 0.9 * spent / seconds)
        losses = []
        for env in environments:
            rows = [tokenizer.encode(_play_text(env, rng.randrange(1 << 30) * 2)).ids for _ in range(8)]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            logits = model(input_ids=ids[:, :-1]).logits
            losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=0))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            log(f"format step {step}: loss {loss.item():.3f}, {spent:.0f} of {seconds:.0f} s")


def main() -> int:
    from rollart_hpc.config.objects import resolve

    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True)
    run = RunDir(parser.parse_args().run_dir)
    config = read_resolved(run.config)
    environments = [resolve(task.environment)(**task.params) for task in config.tasks.values()]
    scratch = run.model.with_name("model.tmp")
    scratch.mkdir(mode=0o700, exist_ok=True)
    make_tiny_model(scratch, config.seed, environments)
    scratch.rename(run.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
