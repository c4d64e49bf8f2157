"""Will it fit? Engine, device, dtype and batch for a model, a run and a machine. Pure.

What an engine holds at once, at most, in bytes (`Need`); n answers of up to `context` tokens, w
bytes a number:

- `weights`: parameters * w. The torch engine merges adapters and keeps the unmerged weights of the
  layers beside them: + in_layers * w.
- `cache`: keys and values, n * context * layers * 2 * kv_heads * head * w (arXiv 2309.06180,
  section 3), times the spare room that an engine's cache grows by.
- `logits`: n * vocabulary * 4, times the float32 copies that drawing a token makes.
- `activations`: of the tokens that one forward pass reads at most: the residual stream, the gated
  MLP's two inner values, and, in torch, keys and values repeated for every head of one layer.
- `fixed`: the process, its libraries, and a card's context.

Seen of the torch engine on the CPU, with 43 million parameters and 8 answers of 264 tokens in
float32: 718 MiB at its peak, where this says 789. `HABITS` of the other engines are from their
documentation and have not been measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from echo_node.cards import equal, shares
from echo_node.hardware.base import GIB, Accelerator, Machine, size
from echo_node.shapes import Shape

EngineName = Literal["torch", "vllm", "mlx"]
Dtype = Literal["float32", "bfloat16"]

WIDTH: dict[str, int] = {"float32": 4, "bfloat16": 2}
MIB = 1 << 20
CARDS_GB = (6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 80, 96, 141)
"""Memory of the cards there are."""
KEPT_BETWEEN_TURNS = GIB
"""What the torch engine keeps of the turns of its answers, at most."""
VLLM_CAPABILITY = 7.5
"""Oldest cards vLLM computes on (docs.vllm.ai, GPU installation)."""
BF16_CAPABILITY = 8.0
"""Oldest cards that compute in bfloat16 (NVIDIA, CUDA C programming guide, compute capability)."""


@dataclass(frozen=True)
class Habits:
    """What an engine holds beside the least. `most` is the largest batch worth having.

    `kept`: share of the layers' weights that is held twice. `spare`: how much larger the cache
    may be than what is in it. `logits`: float32 copies of the logits while a token is drawn.
    `tokens`: most tokens that one forward pass reads; None is all prompts of a batch. `repeats`:
    one layer's keys and values are repeated for every head.
    """

    most: int
    kept: float
    spare: float
    logits: int
    tokens: int | None
    repeats: bool
    fixed: int


HABITS: dict[tuple[EngineName, str], Habits] = {
    ("torch", "cpu"): Habits(64, 1.0, 1.5, 6, None, True, 450 * MIB),
    ("torch", "cuda"): Habits(128, 1.0, 1.5, 6, None, True, 700 * MIB),
    ("torch", "rocm"): Habits(128, 1.0, 1.5, 6, None, True, 900 * MIB),
    ("torch", "mps"): Habits(64, 1.0, 1.5, 6, None, True, 700 * MIB),
    # max_num_batched_tokens is 8192 by default; CUDA graphs and context take 1 to 2 GiB
    ("vllm", "cuda"): Habits(256, 0.1, 1.05, 4, 8192, False, 2 * GIB),
    ("mlx", "metal"): Habits(64, 0.1, 1.5, 4, 2048, False, 500 * MIB),
}  # fmt: skip


@dataclass(frozen=True)
class Software:
    """Which engines are installed. `torch`: what its build computes on; empty without torch."""

    torch: frozenset[str] = frozenset({"cpu"})
    vllm: bool = False
    mlx: bool = False


@dataclass(frozen=True)
class Wishes:
    """What the run and the volunteer ask for; None and "auto" leave it to the plan.

    `context`: longest prompt and answer in tokens; `group_size`: answers to one prompt. `gpu` and
    `ram`: most bytes the engine may have, `gpu_share`: of each card's memory; without them it
    leaves the head-room of `head_room`. `turns`: answers have several turns, between which an
    engine keeps what it has computed.
    """

    context: int
    group_size: int = 8
    dtype: Dtype | None = None
    engine: str = "auto"
    max_sequences: int | None = None
    turns: bool = False
    gpu: int | None = None
    gpu_share: float | None = None
    ram: int | None = None


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine holds at once, at most; see the module."""

    fixed: int
    weights: int
    cache: int
    logits: int
    activations: int

    @property
    def total(self) -> int:
        return self.fixed + self.weights + self.cache + self.logits + self.activations


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a machine will work. `device`: "cpu", or what `Accelerator` it is of its kind: "cuda:1",
    or "cuda:0,1" if its layers are divided among `cards` of them.

    `memory`: bytes that the engine may have there, `memory_share` of all there is; `need` is what
    it will have at most. All three are of each card.
    """

    engine: EngineName
    device: str
    place: str
    dtype: Dtype
    context: int
    max_sequences: int
    memory: int
    memory_share: float
    need: Need
    cards: int = 1

    @property
    def sentence(self) -> str:
        """The plan in one line, for people."""
        many = "1 answer" if self.max_sequences == 1 else f"{self.max_sequences} answers"
        return (
            f"Plan: {self.engine} on {self.place} in {self.dtype}, {many} at a time of up to "
            f"{self.context} tokens: {size(self.need.total)} of the {size(self.memory)} "
            f"it may have{' on each' if self.cards > 1 else ''}."
        )


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """It does not fit. `needs`: bytes that one answer at a time would take."""

    needs: int
    memory: int
    sentence: str
    fix: str


@dataclass(frozen=True)
class Place:
    """Where an engine can compute, and how much it may have there, of how much there is."""

    engine: EngineName
    device: str
    name: str
    memory: int
    whole: int
    habits: Habits = field(compare=False)
    dtype: Dtype = "float32"
    cards: int = 1


def head_room(kind: str, memory: int) -> int:
    """Bytes left to other programs if the volunteer named no limit; kind to a person's computer.

    A card drives the screen; unified memory and RAM are what everything else lives in.
    """
    share, least = {"cpu": (0.15, GIB), "metal": (0.2, 2 * GIB)}.get(kind, (0.1, GIB))
    return max(least, int(memory * share))


def need_of(
    shape: Shape, habits: Habits, *, dtype: Dtype, context: int, sequences: int, cards: int = 1
) -> Need:
    """What an engine of these habits holds with so many answers at a time; see the module.

    With several cards, what each of them holds; see `cards`.
    """
    width = WIDTH[dtype]
    a_token = shape.layers * 2 * shape.kv_heads * shape.head * width
    tokens = sequences * context
    read = tokens if habits.tokens is None else min(tokens, habits.tokens)
    activations = read * (4 * shape.hidden + 3 * shape.inner) * width
    if habits.repeats:
        activations += tokens * 2 * shape.heads * shape.head * width
    return Need(
        fixed=habits.fixed,
        weights=int((shape.embedded + (1 + habits.kept) * shape.in_layers / cards) * width),
        cache=int(tokens * a_token * habits.spare / min(cards, shape.kv_heads)),
        logits=sequences * shape.vocabulary * 4 * habits.logits,
        activations=activations,
    )


def places(machine: Machine, software: Software, wishes: Wishes) -> list[Place]:
    """Where this machine can compute, best first: its cards by their free memory, then its CPU."""
    found = [
        place
        for index, card in _numbered(machine.accelerators)
        for place in _places_on(card, index, software, wishes)
    ]
    found.sort(key=lambda place: -place.memory)
    if "cpu" in software.torch:
        memory = _allowed(wishes.ram, machine.ram, machine.ram_free, "cpu")
        habits = _habits("torch", "cpu", wishes)
        dtype = wishes.dtype or "float32"
        found.append(Place("torch", "cpu", "the CPU", memory, machine.ram, habits, dtype))
    return [one for one in found if wishes.engine in ("auto", one.engine)]


def _habits(engine: EngineName, device: str, wishes: Wishes) -> Habits:
    habits = HABITS[engine, device]
    if engine == "torch" and wishes.turns:
        return replace(habits, fixed=habits.fixed + KEPT_BETWEEN_TURNS)
    return habits


def _numbered(cards: Sequence[Accelerator]) -> list[tuple[int, Accelerator]]:
    seen: dict[str, int] = {}
    numbered = []
    for card in cards:
        numbered.append((seen.setdefault(card.kind, 0), card))
        seen[card.kind] += 1
    return numbered


def _places_on(card: Accelerator, index: int, software: Software, wishes: Wishes) -> list[Place]:
    """The one engine that `auto` means on a card, or all of them if one was named."""
    kind = "metal" if card.unified else card.kind  # the head-room of memory that all share
    limit = wishes.gpu
    if limit is None and wishes.gpu_share is not None:
        limit = int(wishes.gpu_share * card.memory)
    memory = _allowed(limit, card.memory, card.free, kind)
    old = card.kind == "cuda" and _capability(card) < BF16_CAPABILITY
    dtype: Dtype = wishes.dtype or ("float32" if old else "bfloat16")
    vllm_works = _capability(card) >= (BF16_CAPABILITY if dtype == "bfloat16" else VLLM_CAPABILITY)
    choices: list[tuple[EngineName, str]] = []
    if card.kind == "cuda" and software.vllm and vllm_works:
        choices.append(("vllm", "cuda"))
    if card.kind == "metal" and software.mlx:
        choices.append(("mlx", "metal"))
    torch_kind = "mps" if card.kind == "metal" else card.kind
    if torch_kind in software.torch:
        choices.append(("torch", torch_kind))
    if wishes.engine == "auto":
        choices = choices[:1]
    return [
        Place(
            engine,
            device if device in ("mps", "metal") else f"cuda:{index}",  # ROCm's torch says cuda
            card.name,
            memory,
            card.memory,
            _habits(engine, device, wishes),
            dtype,
        )
        for engine, device in choices
    ]


def _allowed(limit: int | None, memory: int, free: int, kind: str) -> int:
    if limit is not None:
        return min(limit, free)
    return max(0, min(free, memory - head_room(kind, memory)))


def _capability(card: Accelerator) -> float:
    try:
        return float(card.capability)
    except ValueError:
        return 0.0


def plan(shape: Shape, wishes: Wishes, machine: Machine, software: Software) -> Plan | Misfit:
    """The first place where at least one answer at a time fits, with the largest batch there."""
    context = min(wishes.context, shape.positions)
    if shape.no_mlx and software.mlx:
        software = replace(software, mlx=False)
        if wishes.engine == "mlx":
            fix = "Leave --engine out, or name --engine torch."
            return Misfit(needs=0, memory=0, sentence=shape.no_mlx, fix=fix)
    tried = places(machine, software, wishes)
    if not tried:
        return Misfit(
            needs=0,
            memory=0,
            sentence=f"the engine {wishes.engine} cannot compute on this machine.",
            fix="Leave --engine out, or install the engine that it names.",
        )
    for place in [*_together(shape, tried, wishes), *tried]:
        chosen = _sequences(shape, place, wishes, context)
        if chosen:
            return Plan(
                engine=place.engine,
                device=place.device,
                place=place.name,
                dtype=place.dtype,
                context=context,
                max_sequences=chosen,
                memory=place.memory,
                memory_share=min(1.0, place.memory / place.whole),
                need=_need(shape, place, context, chosen),
                cards=place.cards,
            )
    return _misfit(shape, tried, context)


def _together(shape: Shape, tried: Sequence[Place], wishes: Wishes) -> list[Place]:
    """Equal cards as one place, if vLLM computes on them; a limit in bytes is for all of them."""
    single = {int(one.device[5:]): one for one in tried if one.engine == "vllm"}
    alike = equal({number: (one.name, one.whole) for number, one in sorted(single.items())})
    count = shares(shape.heads, shape.kv_heads, len(alike)) if alike else 1
    if count == 1:
        return []
    chosen = sorted(sorted(alike, key=lambda number: -single[number].memory)[:count])
    memory = min(single[number].memory for number in chosen)
    if wishes.gpu is not None:
        memory = min(memory, wishes.gpu // count)
    return [
        replace(
            single[chosen[0]],
            device=f"cuda:{','.join(map(str, chosen))}",
            name=f"{count} cards of {single[chosen[0]].name}",
            memory=memory,
            cards=count,
        )
    ]


def _need(shape: Shape, place: Place, context: int, sequences: int) -> Need:
    return need_of(
        shape,
        place.habits,
        dtype=place.dtype,
        context=context,
        sequences=sequences,
        cards=place.cards,
    )


def _sequences(shape: Shape, place: Place, wishes: Wishes, context: int) -> int:
    """The largest batch that fits, whole groups if possible; 0 if not even one answer does."""
    most = place.habits.most if wishes.max_sequences is None else wishes.max_sequences

    def fits(count: int) -> bool:
        return _need(shape, place, context, count).total <= place.memory

    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if wishes.max_sequences is None and low > wishes.group_size:
        low -= low % wishes.group_size
    return low


def _misfit(shape: Shape, tried: Sequence[Place], context: int) -> Misfit:
    best = max(tried, key=lambda place: place.memory)
    needs = _need(shape, best, context, 1).total
    return Misfit(
        needs=needs,
        memory=best.memory,
        sentence=(
            f"the model needs {size(needs)} for one answer of {context} tokens in {best.dtype}, "
            f"and {best.name} may give it {size(best.memory)}."
        ),
        fix=_would_do(shape, context),
    )


def _would_do(shape: Shape, context: int) -> str:
    """The smallest card that would do, with vLLM in bfloat16 and our head-room left."""
    habits = HABITS["vllm", "cuda"]
    need = need_of(shape, habits, dtype="bfloat16", context=context, sequences=1).total
    for gigabytes in CARDS_GB:
        memory = gigabytes * GIB
        if need <= memory - head_room("cuda", memory):
            return (
                f"A card with {gigabytes} GB would do. Else free memory by closing programs, "
                "raise the limit if you set one, or join a run with a smaller model."
            )
    return "No single card is large enough. Join a run with a smaller model."


def least_need(weight_bytes: int, machine: Machine, software: Software, wishes: Wishes) -> str:
    """Why a model cannot fit anywhere, by the size of its weights alone; empty if it might.

    For a model that is still to be fetched: a download of hours is not begun in vain.
    """
    tried = places(machine, software, wishes)
    best = max((place.memory - place.habits.fixed for place in tried), default=0)
    if weight_bytes <= best:
        return ""
    return (
        f"the base model's weights alone are {size(weight_bytes)}, and this machine may give "
        f"an engine {size(max(0, best))}."
    )
