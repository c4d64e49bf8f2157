"""Make a small base policy for a built-in task: `python -m echo_hub.models.make_base TASK OUT`.

What `make_addmix3` does for the demo, for any task that has a recipe in `habits`: a Qwen2-shaped
decoder of some 0.3M parameters, brought up on episodes that show a good habit now and then and a
bad one mostly, in a few minutes on one core. Its tokenizer has a token for each printable ASCII
character and for the task's own phrases. Seeded: one machine makes the same snapshot every time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_hub.folders import let_all_read, whole_folder
from echo_hub.models.habits import RECIPES, Episode, Recipe
from echo_hub.tasks import make_task
from echo_p2p.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LEARNING_RATE, WARMUP_STEPS = 3e-3, 30
POOL = 4
"""Batches drawn at once; each gets episodes of like lengths, so little of it is padding."""
SCHOOL, SCHOOL_GOOD = 0.7, 0.9
"""At first, for this share of the steps, so large a share of the episodes is good: it has to be
able to do what it then mostly does not do."""
SEED = 1

Row = tuple[list[int], list[int]]
"""Token ids and labels of one episode."""


def make_tokenizer(phrases: tuple[str, ...], context: int) -> PreTrainedTokenizerFast:
    """One token a character, in byte-level form, and one a phrase."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    written = [c.replace(" ", "Ġ").replace("\n", "Ċ") for c in CHARACTERS]
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *written])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def make_model(vocabulary: int, context: int) -> Qwen2ForCausalLM:
    """The untrained policy; its weights come from torch's generator."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


def train(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, seed: int
) -> float:
    """Maximum likelihood of the policy's own turns, token by token; the last loss in nats."""
    import torch

    rng = random.Random(seed)
    task = make_task(recipe.task, recipe.options, seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    model.train()
    recent: list[float] = []
    pool: list[list[Row]] = []
    for step in range(1, recipe.steps + 1):
        rate = min(1.0, step / WARMUP_STEPS) * max(0.05, 1 - step / (1.02 * recipe.steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        if not pool:
            good = recipe.good if step > SCHOOL * recipe.steps else SCHOOL_GOOD
            pool = _pool(rng, task, recipe, good, tokenizer)
        ids, labels = _batch(pool.pop())
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = [*recent[-49:], loss.item()]
        if step % 100 == 0:
            mean = sum(recent) / len(recent)
            print(f"step {step} of {recipe.steps}: loss {mean:.4f}", file=sys.stderr)
    return sum(recent) / len(recent)


def _pool(
    rng: random.Random, task: Any, recipe: Recipe, good: float, tokenizer: PreTrainedTokenizerFast
) -> list[list[Row]]:
    """Batches of new episodes, in random order."""
    episodes = [recipe.episode(rng, task, good) for _ in range(POOL * recipe.batch)]
    rows = sorted((_row(episode, tokenizer) for episode in episodes), key=lambda row: len(row[0]))
    batches = [rows[start : start + recipe.batch] for start in range(0, len(rows), recipe.batch)]
    rng.shuffle(batches)
    return batches


def _row(episode: Episode, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Token ids of an episode, and labels that are -100 but on the policy's own turns."""
    ids: list[int] = []
    labels: list[int] = []
    for text, own in episode:
        tokens = tokenizer.encode(text, add_special_tokens=False) + [1] * own
        ids += tokens
        labels += tokens if own else [-100] * len(tokens)
    return ids, labels


def _batch(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, padded on the right."""
    import torch

    width = max(len(ids) for ids, _ in rows)
    return (
        torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
        torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows]),
    )


def make_base(task: str, out: Path, *, seed: int = SEED, steps: int = 0) -> float:
    """Write the snapshot (bfloat16 safetensors) to `out`, which appears whole; returns the loss.

    Args:
        steps: of the training, instead of the recipe's; fewer make a worse base sooner.
    """
    if task not in RECIPES:
        raise ConfigError(
            f"there is no recipe for a base of the task {task!r}.",
            fix=f"There are: {', '.join(RECIPES)}; addmix3 has its own, make_addmix3.",
        )
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    recipe = replace(RECIPES[task], steps=steps or RECIPES[task].steps)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(recipe.phrases, recipe.context)
    model = make_model(len(tokenizer), recipe.context)
    loss = train(model, tokenizer, recipe, seed)
    with whole_folder(out) as draft:
        model.to(torch.bfloat16).save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        let_all_read(draft)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small base policy for a built-in task.")
    parser.add_argument("task", choices=sorted(RECIPES))
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the snapshot")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=0, help="instead of the recipe's")
    args = parser.parse_args()
    started = time.monotonic()
    loss = make_base(args.task, args.out, seed=args.seed, steps=args.steps)
    print(f"loss {loss:.4f} after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
