"""Shapes of models by name, so that `doctor --fit NAME` needs no file and no network.

Source of every row: the config.json of the model's repository on the Hugging Face hub, and for
`parameters` the count its page shows from the safetensors headers (read 2026-12). A test holds the
count that `shapes` computes from the row against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echo_node.shapes import Shape, shape_of


@dataclass(frozen=True)
class Preset:
    """One model. `sizes`: layers, hidden, inner, heads, key-value heads, width of a head."""

    name: str
    kind: str
    sizes: tuple[int, int, int, int, int, int]
    vocabulary: int
    positions: int
    parameters: int
    tied: bool = True

    @property
    def config(self) -> dict[str, Any]:
        """What its config.json says, as far as memory is concerned."""
        layers, hidden, inner, heads, kv_heads, head = self.sizes
        return {
            "model_type": self.kind,
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": self.tied,
        }

    @property
    def shape(self) -> Shape:
        return shape_of(self.config, source=self.name)


_SMOL, _QWEN, _META = 49152, 151936, 128256  # vocabularies
_128K = 131072

PRESETS = (
    Preset("SmolLM2-135M", "llama", (30, 576, 1536, 9, 3, 64), _SMOL, 8192, 134515008),
    Preset("SmolLM2-360M", "llama", (32, 960, 2560, 15, 5, 64), _SMOL, 8192, 361821120),
    Preset("SmolLM2-1.7B", "llama", (24, 2048, 8192, 32, 32, 64), _SMOL, 8192, 1711376384),
    Preset("Qwen2.5-0.5B", "qwen2", (24, 896, 4864, 14, 2, 64), _QWEN, 32768, 494032768),
    Preset("Qwen2.5-1.5B", "qwen2", (28, 1536, 8960, 12, 2, 128), _QWEN, 32768, 1543714304),
    Preset("Qwen2.5-3B", "qwen2", (36, 2048, 11008, 16, 2, 128), _QWEN, 32768, 3085938688),
    Preset("Qwen2.5-7B", "qwen2", (28, 3584, 18944, 28, 4, 128), 152064, 32768, 7615616512, False),
    Preset("Qwen3-0.6B", "qwen3", (28, 1024, 3072, 16, 8, 128), _QWEN, 40960, 596049920),
    Preset("Qwen3-4B", "qwen3", (36, 2560, 9728, 32, 8, 128), _QWEN, 40960, 4022468096),
    Preset("Qwen3-8B", "qwen3", (36, 4096, 12288, 32, 8, 128), _QWEN, 40960, 8190735360, False),
    Preset("Llama-3.2-1B", "llama", (16, 2048, 8192, 32, 8, 64), _META, _128K, 1235814400),
    Preset("Llama-3.2-3B", "llama", (28, 3072, 8192, 24, 8, 128), _META, _128K, 3212749824),
    Preset("Llama-3.1-8B", "llama", (32, 4096, 14336, 32, 8, 128), _META, _128K, 8030261248, False),
)  # fmt: skip


def find_preset(name: str) -> Preset | None:
    """The preset meant: whoever published it, and `-Instruct` behind it, change nothing."""
    wanted = name.rpartition("/")[2].lower().removesuffix("-instruct").removesuffix("-base")
    return next((preset for preset in PRESETS if preset.name.lower() == wanted), None)
