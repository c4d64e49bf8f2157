"""Which thresholds a run's audits go by: calibrated ones if `audit.json` is there.

Without it the limits of run.toml hold, which are for float32. In bfloat16 they would condemn honest
nodes, so there a run is not served until it was calibrated.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from echo_hub.audit.calibration import Setting, check_for, load
from echo_hub.audit.sequential import FLOAT32, Noise
from echo_hub.config import RunConfig
from echo_hub.paths import RunFolder
from echo_p2p.errors import ConfigError

_PIECE = 1 << 22


def setting_of(config: RunConfig, base: Path) -> Setting:
    """What a calibration of this run is for."""
    return Setting(
        base=base_digest(base),
        dtype=config.base.dtype,
        temperature=config.sampling.temperature,
        top_k=config.sampling.top_k,
        top_p=config.sampling.top_p,
    )


def audit_rules(config: RunConfig, folder: RunFolder, base: Path) -> tuple[RunConfig, Noise]:
    """The configuration with the thresholds in force, and the noise of honest work.

    Raises:
        ConfigError: `audit.json` is for another base or way of sampling, or is needed and missing.
    """
    if not folder.calibration.is_file():
        if config.base.dtype != "float32":
            raise ConfigError(
                f"base.dtype is {config.base.dtype}, and this run's audits were not calibrated: "
                "they would condemn honest nodes.",
                fix=f'Run `echo-hub calibrate {folder.root}`, or set base.dtype = "float32".',
            )
        return config, FLOAT32
    calibration = load(folder.calibration)
    check_for(calibration, setting_of(config, base), folder.calibration)
    limits = {
        "max_margin": calibration.max_margin,
        "max_logprob_difference": calibration.max_logprob_difference,
    }
    audit = config.audit.model_copy(update=limits)
    return config.model_copy(update={"audit": audit}), calibration.noise


def base_digest(base: Path) -> str:
    """BLAKE3, in hex, of a snapshot's configuration and weights."""
    digest = blake3()
    for path in sorted([base / "config.json", *base.glob("*.safetensors")]):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()
