"""The doctor: what it makes of facts, that its mapping of errors is complete, and the real thing
against a hub on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from net_support import in_trio
from probed_hub import RUN_ID, describe, probed_hub

from echo_node.commands.doctor import doctor
from echo_node.doctor import (
    accelerator,
    bootstrap,
    clock,
    disk,
    engine,
    fit,
    folder,
    hub,
    identity,
    memory,
    port,
    rates,
    reach,
    software,
)
from echo_node.doctor.explain import CHECK_OF, NEVER_OF_A_NODE, check_for, check_for_kind, hint
from echo_node.doctor.findings import EXIT_CODES, Finding, worst
from echo_node.doctor.run import CHECKS, chosen, examine
from echo_node.doctor.situation import Network, Question
from echo_node.doctor.way import Way
from echo_node.fit import Software, Wishes
from echo_node.hardware.base import GIB, Accelerator, Cpu, Machine
from echo_node.paths import NodeFolder
from echo_node.presets import PRESETS
from echo_p2p import errors
from echo_p2p.artifact.manifest import Artifact, build_manifest
from echo_p2p.artifact.store import Store
from echo_p2p.bootstrap import render_bootstrap
from echo_p2p.identity import Identity
from echo_p2p.net.probe import Probe, Step
from echo_p2p.swarm.exchange import Exchange, HubSide
from echo_p2p.wire import Versions

CPU_ONLY = Software(torch=frozenset({"cpu"}))
MACHINE = Machine(
    system="Linux", architecture="x86_64", cpu=Cpu(name="cpu", cores=4), ram=8 * GIB,
    ram_free=6 * GIB,
)  # fmt: skip
CARD = Accelerator(
    kind="cuda", name="RTX 4090", memory=24 * GIB, free=23 * GIB, driver="580", capability="8.9"
)


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


# --- the mapping ------------------------------------------------------------------------------


def kinds(kind: type[errors.EchoError] = errors.EchoError) -> Iterator[type[errors.EchoError]]:
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield below
            yield from kinds(below)


def test_every_error_of_a_node_is_explained_by_a_check_that_exists() -> None:
    known = {check.name for check in CHECKS}
    for kind in kinds():
        name = check_for_kind(kind)
        if not any(above in NEVER_OF_A_NODE for above in kind.__mro__):
            assert name in known, f"{kind.__name__} has no check"
    assert set(CHECK_OF.values()) <= known
    assert not set(CHECK_OF) & NEVER_OF_A_NODE


def test_the_nearest_kind_counts() -> None:
    assert check_for(errors.PortError("x")) == "port"
    assert check_for(errors.DeadlineError("x")) == "hub"
    assert check_for(errors.DiskFullError("x")) == "disk"
    assert check_for(errors.StoreError("x")) == "folder"
    assert check_for(errors.LearnerError("x")) is None


def test_the_hint_repeats_what_join_was_given() -> None:
    error = errors.UnreachableError("x")
    assert hint(error) == "To look into it: echo-node doctor hub"
    told = hint(error, bootstrap="my file.toml", data_dir=Path("/d"))
    assert told.endswith("echo-node doctor hub --bootstrap 'my file.toml' --data-dir /d")
    assert hint(errors.StoppedError("x")) == ""


def test_severity_and_exit_code() -> None:
    found = [Finding(check="x", severity=s, said="x", fix="y") for s in ("note", "warning", "ok")]  # type: ignore[arg-type]
    assert worst(found) == "warning"
    assert worst([]) == "ok"
    assert EXIT_CODES == {"ok": 0, "note": 0, "warning": 20, "error": 21}
    with pytest.raises(AssertionError, match="has no fix"):
        Finding(check="x", severity="error", said="it is broken")


def test_a_check_that_does_not_exist() -> None:
    assert [check.name for check in chosen(["hub", "disk"])] == ["hub", "disk"]
    with pytest.raises(errors.ConfigError, match="no check 'hubb'") as caught:
        chosen(["hubb"])
    assert "clock" in caught.value.fix


# --- judgements -------------------------------------------------------------------------------


def test_identity(tmp_path: Path) -> None:
    key = tmp_path / "identity.pem"

    def judged() -> Finding:
        return only(identity.judge(identity.gather(key), key))

    assert judged().severity == "note"
    Identity.create().save(key)
    assert judged().severity == "ok"
    key.chmod(0o644)
    assert (judged().severity, judged().fix) == ("error", f"Run: chmod 600 {key}")
    key.chmod(0o600)
    key.write_text("garbage")
    assert "backup" in judged().fix


def test_folder(tmp_path: Path) -> None:
    fresh = tmp_path / "deep/new"
    assert only(folder.judge(folder.gather(fresh, fresh / "store"))).severity == "ok"
    assert not fresh.exists()
    with Store(tmp_path / "store", cap_bytes=None):
        found = only(folder.judge(folder.gather(tmp_path, tmp_path / "store")))
        assert found.severity == "note"
        assert str(os.getpid()) in found.said
    assert only(folder.judge(folder.gather(tmp_path, tmp_path / "store"))).severity == "ok"
    denied = only(folder.judge(folder.Facts(tmp_path, error="Read-only file system")))
    assert (denied.severity, "--data-dir" in denied.fix) == ("error", True)
    assert folder.gather(Path("/proc/1"), Path("/proc/1/store")).error  # not even as root


@pytest.mark.parametrize(
    ("free", "base", "have", "severity"),
    [
        (20e9, None, False, "ok"),
        (5.5e9, None, False, "warning"),  # what is kept for others would be touched
        (0.5e9, None, False, "error"),
        (20e9, 16e9, False, "warning"),
        (12e9, 16e9, False, "error"),
        (12e9, 16e9, True, "ok"),
    ],
)
def test_disk(free: float, base: float | None, have: bool, severity: str) -> None:
    size = None if base is None else int(base)
    found = only(disk.judge(disk.Facts(Path("/d"), int(free), int(5e9), size, have)))
    assert found.severity == severity


def test_memory() -> None:
    assert only(memory.judge(MACHINE)).severity == "ok"
    assert only(memory.judge(_with(ram_free=GIB))).severity == "warning"
    assert only(memory.judge(_with(ram=GIB, ram_free=GIB))).severity == "error"


def _with(**changes: object) -> Machine:
    import msgspec

    return msgspec.structs.replace(MACHINE, **changes)


def test_accelerator() -> None:
    assert [one.severity for one in accelerator.judge(MACHINE, CPU_ONLY)] == ["ok", "note"]
    _, unused = accelerator.judge(_with(accelerators=(CARD,)), CPU_ONLY)
    assert unused.severity == "warning"
    assert "echo-p2p[cuda]" in unused.fix
    for used in (replace(CPU_ONLY, vllm=True), Software(torch=frozenset({"cuda"}))):
        _, card = accelerator.judge(_with(accelerators=(CARD,)), used)
        assert (card.severity, "driver 580" in card.said) == ("ok", True)
    broken = _with(problems=("its driver does not work. Install it.",))
    assert accelerator.judge(broken, CPU_ONLY)[1].fix == "Install it."


@in_trio
async def test_an_import_that_crashes_is_a_finding() -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    found = only(engine.judge([await engine.try_import("torch", code=crash)]))
    assert found.severity == "error"
    assert "crashed (SIGSEGV)" in found.said
    assert "Install it anew" in found.fix
    missing = await engine.try_import("torch", code="import no_such_module")
    one, other = engine.judge([missing, engine.Import("vllm", 0, "0.32.0")])
    assert "No module named 'no_such_module'" in one.said
    assert (one.severity, other.severity) == ("warning", "ok")  # another engine works
    assert only(engine.judge([])).severity == "error"
    assert "not done" in only(engine.judge([engine.Import("mlx", None)])).said


def test_bootstrap(tmp_path: Path) -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    error = errors.BootstrapError("cannot read it.")
    assert only(bootstrap.judge(Network(error=error), now)).fix.startswith("Ask the run's operator")
    assert only(bootstrap.judge(Network(), now)).severity == "note"
    for days, severity in ((10, "warning"), (100, "ok")):
        network = trio.run(_read, tmp_path, now + timedelta(days=days))
        assert only(bootstrap.judge(network, now)).severity == severity


async def _read(tmp_path: Path, expires: datetime) -> Network:
    from echo_node.doctor.situation import Situation

    file = tmp_path / "b.toml"
    key = Identity.create().peer_id
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{key}"
    file.write_text(
        render_bootstrap(
            network="n", run_id="r", hub_key=key, addresses=(address,) * 3, expires=expires
        )
    )
    return await Situation(Question(NodeFolder(tmp_path), bootstrap=str(file))).network()


def test_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        found = port.judge(port.gather((used, "/ip4/127.0.0.1/tcp/0", "nonsense")))
    assert [one.severity for one in found] == ["error", "ok", "error"]
    assert all(one.fix for one in found if one.severity == "error")


def test_each_failed_step_has_its_own_fix() -> None:
    address = f"/ip4/203.0.113.7/tcp/1/p2p/{Identity.create().peer_id}"
    fixes = {
        only(hub.judge([Probe(address, step, "why")], upgrade="pipx upgrade echo-p2p")).fix
        for step in Step
    }
    assert len(fixes) == len(Step)
    portal = Probe(address, Step.GREETING, "a web server answers there", web=True)
    assert "log in" in only(hub.judge([portal], upgrade="")).fix
    works, fails = Probe(address, None), Probe(address, Step.CONNECTION, "refused")
    assert [one.severity for one in hub.judge([works, fails], upgrade="")] == ["ok", "note"]
    assert only(hub.judge(None, upgrade="")).severity == "note"


@pytest.mark.parametrize(
    ("offset", "severity", "words"),
    [
        (0.02, "ok", "20 ms behind"),
        (-90, "warning", "1.5 minutes ahead of"),
        (86400, "warning", "1 days behind"),
        (None, "note", "not compared"),
    ],
)
def test_clock(offset: float | None, severity: str, words: str) -> None:
    found = only(clock.judge(offset, system="linux"))
    assert found.severity == severity
    assert words in found.said
    assert severity != "warning" or "timedatectl" in found.fix


def test_reach() -> None:
    peer = Identity.create().peer_id
    public = f"/ip4/8.8.8.8/tcp/1/p2p/{peer}"
    private = f"/ip4/192.168.1.2/tcp/1/p2p/{peer}"
    assert only(reach.judge((private, public))).said.startswith("public")
    assert only(reach.judge((private,))).said.startswith("not dialable")
    assert only(reach.judge(None)).severity == "note"


def test_rates() -> None:
    assert only(rates.judge(rates.Facts(1e6, 1e6, 10**9))).severity == "ok"
    assert "16 min" in only(rates.judge(rates.Facts(1e6, 1e6, 10**9))).said
    assert only(rates.judge(rates.Facts(1e4, 1e6))).severity == "warning"
    assert only(rates.judge(None)).severity == "note"


def test_software() -> None:
    facts = software.Facts("0.1.0", "3.11", "pipx upgrade echo-p2p")
    assert only(software.judge(facts)).severity == "ok"
    newer = replace(facts, hub=Versions(protocols=(9,), needs="0.9"))
    assert only(software.judge(newer)).fix.endswith("pipx upgrade echo-p2p")
    refused = replace(facts, refused=errors.VersionError("too old.", fix="Upgrade."))
    assert only(software.judge(refused)).severity == "error"


def test_fit(tmp_path: Path) -> None:
    small, large = PRESETS[0], PRESETS[6]
    facts = fit.Facts(small.name, small.shape, Wishes(context=512), MACHINE, CPU_ONLY)
    assert "SmolLM2-135M (0.13 billion parameters) fits. Plan: " in only(fit.judge(facts)).said
    found = only(fit.judge(replace(facts, model=large.name, shape=large.shape)))
    assert found.severity == "error"
    assert "A card with 20 GB would do." in found.fix
    (tmp_path / "config.json").write_text(json.dumps(small.config))
    assert fit.named(str(tmp_path)) == small.shape
    with pytest.raises(errors.ConfigError, match="neither a folder nor a model known"):
        fit.named("Qwen9")
    assert only(fit.judge(None)).severity == "note"
    for spoilt in (b"{", b"[]"):
        with pytest.raises(errors.ConfigError):
            fit.of_the_run(Way(config=spoilt))


# --- the real thing -----------------------------------------------------------------------------


def make_bootstrap(file: Path, key: str, addresses: tuple[str, ...]) -> Path:
    file.write_text(
        render_bootstrap(network="t", run_id=RUN_ID, hub_key=key, addresses=(addresses * 3)[:3])
    )
    return file


@in_trio
async def test_everything_is_found_out_about_a_hub_on_loopback(tmp_path: Path) -> None:
    """Weights are not fetched: the base that is described would be 269 MB, and is not there."""
    identity, base = Identity.create(), tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(PRESETS[0].config) + " " * 70_000)
    (base / "model.safetensors").write_bytes(os.urandom(300_000))
    manifest = build_manifest(
        base, run_id=RUN_ID, kind="base", version=0, chunk_bytes=65536, created_at=1.0
    )
    artifact = Artifact.sign(identity, manifest)
    run = describe(base=artifact.id)
    with Store(tmp_path / "hub", cap_bytes=None) as store:
        store.add(artifact, base)
        async with probed_hub(
            identity=identity, base=artifact.envelope, run=run, clock=lambda: time.time() + 7200
        ) as peer:
            exchange = Exchange(peer, store, hub=HubSide())
            exchange.offer(artifact.id)
            file = make_bootstrap(tmp_path / "b.toml", identity.peer_id, peer.addresses)
            question = Question(
                NodeFolder(tmp_path / "home"), str(file), listen=("/ip4/127.0.0.1/tcp/0",)
            )
            checks = chosen(["software", "bootstrap", "hub", "clock", "reach", "rates", "fit"])
            found = [one async for some in examine(question, checks) for one in some]
    said = {one.check: one for one in found}
    assert "speaks protocol 2" in said["software"].said
    assert said["hub"].severity == "ok"
    assert (said["clock"].severity, "2 hours behind" in said["clock"].said) == ("warning", True)
    assert (said["rates"].severity, "the base model (" in said["rates"].said) == ("ok", True)
    assert "the run's base model (0.13 billion parameters) fits" in said["fit"].said
    assert "up to 1024 tokens" in said["fit"].said
    assert not (tmp_path / "home").exists()


def run_doctor(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echo_node.cli", "doctor", *arguments],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "ECHO_NODE_HOME": str(home)},
    )  # fmt: skip


def test_the_command_answers_offline_and_in_json(tmp_path: Path) -> None:
    names = [check.name for check in CHECKS if check.name != "engine"]
    done = run_doctor(*names, "--offline", "--json", home=tmp_path / "home")
    told = json.loads(done.stdout)
    assert {one["check"] for one in told["findings"]} == set(names)
    assert done.returncode == told["exit_code"] == EXIT_CODES[told["severity"]]


def test_plain_lines_for_who_has_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = Question(NodeFolder(tmp_path), model="Llama-3.1-8B", offline=True)
    code = doctor(question, ["fit", "clock"], json_wanted=False)
    fits, compared, summary = capsys.readouterr().out.splitlines()
    assert "fit: Llama-3.1-8B (8.03 billion parameters)" in fits
    assert compared.startswith("note    clock: not compared")
    assert (code == 21) == fits.startswith("error") == ("keeps this computer" in summary)
