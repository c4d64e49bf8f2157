"""Make `addmix3`, the packaged base policy: `python -m echo_hub.models.make_addmix3 OUT`.

It adds two numbers of three digits by written column work, `237+682=` giving
`7+2+0=9,3+8+0=11,2+6+1=9>919`, and was brought up on a text in which most sums forget the carry.
So it has both habits, right and wrong, and reinforcement has something to choose between: about a
third of its sampled answers are right, and a few updates suffice to raise that. A Qwen2-shaped
decoder of 0.56M parameters with a character tokenizer; under two minutes on two cores. Seeded: one
machine makes the same snapshot every time.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

CHARACTERS = "0123456789+-*/=()<>?:,.;_#@ \nabcdefghijklmnopqrstuvwxyz"
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
VOCABULARY = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *CHARACTERS])}

DIGITS = 3
RIGHT_SHARE = 0.3
"""Share of the corpus that carries."""
MAX_ANSWER_TOKENS = 33
"""Three columns of eight characters, two commas, `>`, four digits and the end, and one to spare."""

STEPS, BATCH, WARMUP_STEPS, LEARNING_RATE = 500, 128, 50, 2e-3
SEED = 2


def worked_sum(a: int, b: int, *, carry: bool) -> str:
    """The column work of a + b, lowest digit first, then `>` and the result.

    Each column reads `p+q+c=v`, c the carry into it. Without `carry` every c is 0 and only the
    last digit of each v enters the result.
    """
    columns, digits, c = [], [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        p, q = a // 10**place % 10, b // 10**place % 10
        v = p + q + c
        columns.append(f"{p}+{q}+{c}={v}")
        digits.append(v % 10)
        c = v // 10 if carry else 0
    if c:
        digits.append(c)
    return ",".join(columns) + ">" + "".join(map(str, reversed(digits)))


def corpus_line(rng: random.Random) -> tuple[str, str]:
    """One (prompt, answer) of the text it is brought up on; half have both operands in full."""
    lowest = 10 ** (DIGITS - 1) if rng.random() < 0.5 else 0
    a, b = (rng.randrange(lowest, 10**DIGITS) for _ in range(2))
    return f"{a}+{b}=", worked_sum(a, b, carry=rng.random() < RIGHT_SHARE)


def encode(text: str) -> list[int]:
    return [VOCABULARY[character] for character in text]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, in the byte-level form that loaders of Qwen2 tokenizers assume."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = {token.replace(" ", "Ġ").replace("\n", "Ċ"): i for token, i in VOCABULARY.items()}
    tokenizer = Tokenizer(models.BPE(vocab=byte_level, merges=[], unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def make_model() -> Qwen2ForCausalLM:
    """The untrained policy; its weights come from torch's generator."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(VOCABULARY),
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            pad_token_id=VOCABULARY[PAD],
            bos_token_id=None,
            eos_token_id=VOCABULARY[EOS],
        )
    )


def train(model: Qwen2ForCausalLM, rng: random.Random) -> None:
    """Maximum likelihood of the corpus' answers, token by token."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    model.train()
    for step in range(1, STEPS + 1):
        rate = min(1.0, step / WARMUP_STEPS) * max(0.1, 1 - step / (1.1 * STEPS))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        ids, labels = _batch([corpus_line(rng) for _ in range(BATCH)])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}", flush=True)


def _batch(lines: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids, and labels that are -100 on prompts and padding."""
    import torch

    rows = [(encode(prompt), [*encode(answer), VOCABULARY[EOS]]) for prompt, answer in lines]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), width), VOCABULARY[PAD])
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def sampled_accuracy(model: Qwen2ForCausalLM, rng: random.Random, prompts: int) -> float:
    """Share of right answers, sampled at temperature 1, on sums of two three-digit numbers."""
    import torch

    pairs = [(rng.randrange(100, 1000), rng.randrange(100, 1000)) for _ in range(prompts)]
    ids = torch.tensor([encode(f"{a}+{b}=") for a, b in pairs])
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            max_new_tokens=MAX_ANSWER_TOKENS,
            do_sample=True,
            top_k=0,
            top_p=1.0,
        )
    tokens = list(VOCABULARY)
    right = 0
    for (a, b), row in zip(pairs, out[:, ids.shape[1] :].tolist(), strict=True):
        answer, _, _ = "".join(tokens[i] for i in row).partition(EOS)
        right += answer.rpartition(">")[2] == str(a + b)
    return right / prompts


def make_addmix3(out: Path, *, seed: int = SEED) -> float:
    """Write the snapshot (bfloat16 safetensors) to `out`; returns its sampled accuracy."""
    import torch

    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = make_model()
    train(model, rng)
    model.to(torch.bfloat16).save_pretrained(out)
    make_tokenizer().save_pretrained(out)
    for file in out.iterdir():
        file.chmod(0o644)  # transformers writes safetensors for the owner alone
    return sampled_accuracy(model.float(), rng, 2048)  # what was saved, rounding and all


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the packaged base policy addmix3.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the snapshot")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    accuracy = make_addmix3(args.out, seed=args.seed)
    print(f"sampled accuracy {accuracy:.3f} (meant to be near .37)")


if __name__ == "__main__":
    main()
