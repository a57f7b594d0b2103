"""Makes the tiny base model of a run: it knows the format of the tasks' answers, but no solutions.

Owns a word-level tokenizer over the tasks' words, a chat template, a two-layer Qwen3, and a short training on
trajectories with legal but random answers, on training seeds only. An environment provides the answers with
`legal_answer(rng)` (`envs.contract.HasFormat`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart_hpc.backends.registry import find
from rollart_hpc.config.callables import FORMAT, lacks_format
from rollart_hpc.config.objects import resolve
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.errors import UserError
from rollart_hpc.files import library_writes
from rollart_hpc.rundir import RunDir

PAD, UNKNOWN, END, USER, ASSISTANT = SPECIAL = ("<pad>", "<unk>", "<|end|>", "<|user|>", "<|assistant|>")
PAD_ID, END_ID = SPECIAL.index(PAD), SPECIAL.index(END)
# A turn only appends text, and what follows an answer starts with the token that ended the answer.
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' + message['content'] + '<|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
MAX_LENGTH = 512
WIDTH, HEAD_DIM = 64, 16
MAX_TURNS = 64  # per trajectory: an environment may rely on the task's max_turns to end
NUM_VOCABULARY_PLAYS = 200
STEPS, LEARNING_RATE, WARMUP_STEPS = 500, 3e-3, 20
TOKENS_PER_TASK = 800  # approximately, per step
OBSERVED_WEIGHT = 0.3  # loss weight of an observed token, relative to an answered one
IGNORED, OBSERVED, ANSWERED = range(3)


class Example(NamedTuple):
    ids: list[int]
    kinds: list[int]  # for each token: IGNORED, OBSERVED or ANSWERED


def make_tiny_model(
    directory: Path,
    seed: int,
    environments: Sequence[Any],
    steps: int = STEPS,
    log: Callable[[str], None] = print,
    head_dim: int = HEAD_DIM,
) -> None:
    """Write a Hugging Face model to `directory`. It trains for a number of steps, not for a time."""
    torch.manual_seed(seed)
    torch.set_flush_denormal(True)
    tokenizer = _make_tokenizer(environments)
    model = _make_model(tokenizer.get_vocab_size(), head_dim)
    _learn_format(model, tokenizer, environments, random.Random(seed), steps, log)
    settings = {"eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN, "chat_template": TEMPLATE}
    with library_writes(directory, sum(tensor.nbytes for tensor in model.parameters())):
        model.save_pretrained(directory)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _make_tokenizer(environments: Sequence[Any]) -> Tokenizer:
    rng = random.Random(0)
    seeds = [_training_seed(number) for number in range(NUM_VOCABULARY_PLAYS)]
    texts = [text for env in environments for seed in seeds for turn in _play(env, seed, rng) for text in turn]
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # no decoder: words are joined by a space
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _make_model(vocabulary: int, head_dim: int) -> Qwen3ForCausalLM:
    """At this width, attention learns nothing for hundreds of steps with the usual initializer_range of 0.02."""
    num_heads = max(1, WIDTH // head_dim)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=192, num_hidden_layers=2, head_dim=head_dim,
        num_attention_heads=num_heads, num_key_value_heads=num_heads, max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.15, pad_token_id=PAD_ID, eos_token_id=END_ID, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def _training_seed(number: int) -> int:
    """Even: odd seeds are for validation, and the model must never have seen one of them."""
    return 2 * number


def _play(env: Any, seed: int, rng: random.Random) -> list[tuple[str, str]]:
    """(observation, answer) of every turn."""
    turns: list[tuple[str, str]] = []
    observation, done = env.reset(seed), False
    while not done and len(turns) < MAX_TURNS:
        answer = env.legal_answer(rng)
        turns.append((observation, answer))
        turn = env.step(answer)
        observation, done = turn.observation, turn.done
    return turns


def _tokens(turns: list[tuple[str, str]], tokenizer: Tokenizer) -> Example:
    play = Example([], [])
    for number, (observation, answer) in enumerate(turns):
        # The first observation can't be predicted: nothing comes before it.
        observed = (f"{USER} {observation} {END} {ASSISTANT}", OBSERVED if number else IGNORED)
        for text, kind in (observed, (f"{answer} {END}", ANSWERED)):
            ids = tokenizer.encode(text).ids
            play.ids.extend(ids)
            play.kinds.extend([kind] * len(ids))
    return Example(play.ids[:MAX_LENGTH], play.kinds[:MAX_LENGTH])


def _batch(env: Any, tokenizer: Tokenizer, rng: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss weights [trajectories, tokens] of one task."""
    plays: list[Example] = []
    while sum(len(play.ids) for play in plays) < TOKENS_PER_TASK:
        plays.append(_tokens(_play(env, _training_seed(rng.randrange(1 << 30)), rng), tokenizer))
    longest = max(len(play.ids) for play in plays)
    ids = torch.tensor([play.ids + [PAD_ID] * (longest - len(play.ids)) for play in plays])
    kinds = torch.tensor([play.kinds + [IGNORED] * (longest - len(play.ids)) for play in plays])
    return ids, torch.tensor([0.0, OBSERVED_WEIGHT, 1.0])[kinds]


def _learn_format(
    model: Any,
    tokenizer: Tokenizer,
    environments: Sequence[Any],
    rng: random.Random,
    steps: int,
    log: Callable[[str], None],
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - 0.9 * step / steps)
        optimizer.zero_grad()
        losses = []
        for env in environments:
            ids, weights = _batch(env, tokenizer, rng)
            logits = model(input_ids=ids[:, :-1]).logits
            each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
            loss = (each * weights[:, 1:]).sum() / weights[:, 1:].sum()
            loss.backward()
            losses.append(f"{loss.item():.3f}")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            log(f"format step {step + 1} of {steps}: loss {' '.join(losses)}")


def _make_environments(tasks: Mapping[str, TaskConfig]) -> list[Any]:
    """Reports problems that `check` can't find because it does not call the user's code."""
    environments = []
    for name, task in tasks.items():
        try:
            env = resolve(task.environment)(**task.params)
        except UserError:
            raise
        except Exception as error:
            what = f"tasks.{name}: can't create the environment: {type(error).__name__}: {error}"
            raise UserError(what, f"correct tasks.{name}.params or {task.environment}") from error
        if not hasattr(env, FORMAT):
            raise UserError(f"tasks.{name}.environment: {lacks_format(type(env).__name__)}")
        environments.append(env)
    return environments


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True)
    run = RunDir(parser.parse_args().run_dir)
    config = read_resolved(run.config)
    try:
        environments = _make_environments(config.tasks)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    scratch = run.model.with_name("model.tmp")
    scratch.mkdir(mode=0o700, exist_ok=True)
    head_dim = max(HEAD_DIM, find("engine", config.engine.kind).min_head_dim)
    make_tiny_model(scratch, config.seed, environments, head_dim=head_dim)
    scratch.rename(run.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
