"""`echo-hub init`: a run's folder, whole or not at all, and what it refuses."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from echo_hub.commands.setup_run import init_run
from echo_hub.config import load_config
from echo_hub.folders import whole_folder
from echo_hub.models import make_base, smollm2
from echo_hub.paths import RunFolder
from echo_p2p.bootstrap import Bootstrap, RunEntry, is_loopback
from echo_p2p.errors import ConfigError
from echo_p2p.identity import Identity
from echo_p2p.toml import load_toml

GUIDE = Path(__file__).parents[2] / "docs" / "operator.md"


def init(folder: Path, **changes: object) -> RunFolder:
    wanted = {"run_id": "a", "model": "addmix3", "hosts": (), "port": 42420, "local_demo": False}
    return init_run(folder, **{**wanted, **changes})  # type: ignore[arg-type]


def entry_of(made: RunFolder) -> RunEntry:
    return load_toml(made.bootstrap, Bootstrap).choose(None)


def test_the_guide_s_first_command_works(tmp_path: Path) -> None:
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    command = next(line for line in lines if line.startswith("echo-hub init "))
    ended = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", *shlex.split(command)[1:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    made = RunFolder(tmp_path / "my-run")
    assert load_config(made.config).network.announce == ("/dns4/hub.example.org/tcp/42420",)
    assert stat.S_IMODE(made.identity.stat().st_mode) == 0o600
    entry = entry_of(made)
    assert entry.hub_key == Identity.load(made.identity).peer_id
    assert [is_loopback(address) for address in entry.hub_addresses] == [False, True]
    assert [is_loopback(address) for address in entry.directory_peers] == [False, True]
    assert "on the hub's own machine" in made.bootstrap.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["my-run"]


@pytest.mark.parametrize(
    "hosts", [(), ("127.0.0.1",), ("h.example", "h.example"), ("198.51.100.7", "2001:db8::7")]
)
def test_any_hosts_make_a_file_that_a_node_accepts(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    entry = entry_of(init(tmp_path / "run", hosts=hosts))
    assert len(entry.addresses) == len(set(entry.addresses)) == 4


def test_a_file_for_volunteers_may_expire(tmp_path: Path) -> None:
    end = datetime(2200, 1, 1, tzinfo=UTC)
    assert load_toml(init(tmp_path / "run", expires=end).bootstrap, Bootstrap).expires == end


def test_a_host_with_ipv6_listens_there(tmp_path: Path) -> None:
    network = load_config(init(tmp_path / "run", hosts=("2001:db8::7",)).config).network
    assert network.listen == ("/ip4/0.0.0.0/tcp/42420", "/ip6/::/tcp/42420")


def test_a_small_base_is_made_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(task: str, out: Path) -> float:
        made.append(task)
        out.mkdir()
        return 0.0

    monkeypatch.setattr(make_base, "make_base", make)  # the real one takes minutes
    folder = init(tmp_path / "run", model="knights-knaves")
    config = load_config(folder.config)
    assert made == ["knights-knaves"]
    assert config.base.path == str(folder.small_base)
    assert folder.small_base.is_dir()
    assert config.task.name == "knights-knaves"
    assert config.task.options == {"wording": "terse", "level": 2}


def test_a_language_model_gets_a_built_in_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "make_smollm2", lambda out: out.mkdir())
    config = load_config(init(tmp_path / "run", model="smollm2", task="sokoban").config)
    assert (config.task.name, config.task.template) == ("sokoban", "chat")
    assert config.sampling.max_new_tokens > config.sampling.turn_tokens > 300


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "wordle", "task": "sokoban"}, "knows its own task alone, so not 'sokoban'"),
        ({"model": "smollm2", "task": "chess"}, "no preset for the task 'chess'"),
        ({"run_id": "Bad Run"}, r"run\.id: .*found 'Bad Run'"),
        ({"model": "gpt"}, "no model 'gpt'"),
        ({"local_demo": True, "hosts": ("hub.example",)}, "leave --address out"),
        ({"local_demo": True}, "leave --run out"),
        ({"hosts": ("not a host!",)}, "'not a host!' is no host name or IP"),
        ({"hosts": ("http://foo:99",)}, "'http://foo:99' is no host name or IP"),
        ({"hosts": ("foo:99",)}, "is no host name"),
        ({"hosts": ("1.2.3",)}, "is no host name"),
        ({"hosts": ("0.0.0.0",)}, "is no host name"),
        ({"hosts": ("fe80::1%eth0",)}, "is no host name"),
        ({"hosts": ("",)}, "is no host name"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "--expires 2020-01-01 is over"),
        ({"hosts": tuple(f"h{n}.example" for n in range(500))}, r"addresses: .* at most"),
    ],
)
def test_what_is_refused_leaves_nothing(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        init(tmp_path / "new" / "run", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "GGUF_FILE", "of-another-version.gguf")
    with pytest.raises(ConfigError, match="not installed"):
        init(tmp_path / "run", model="smollm2")
    assert list(tmp_path.iterdir()) == []


def test_a_converted_model_is_named_where_it_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(out: Path) -> Path:
        out.mkdir()
        return out

    monkeypatch.setattr(smollm2, "make_smollm2", convert)  # the real one takes a minute
    made = init(tmp_path / "run", model="smollm2")
    assert Path(load_config(made.config).base.path) == tmp_path / "run" / "smollm2"
    assert (tmp_path / "run" / "smollm2").is_dir()


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        (lambda root: Path("/proc/foo"), "cannot make the folder /proc/foo: "),
        (lambda root: root / "full", "full is not empty"),
        (lambda root: root / "full" / "run.toml", r"run\.toml is not a folder"),
        (lambda root: root / "full" / "run.toml" / "x", "not a directory"),
    ],
)
def test_places_where_no_run_can_be(
    tmp_path: Path, place: Callable[[Path], Path], complaint: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "run.toml").write_text("mine")
    with pytest.raises(ConfigError, match=complaint):
        init(place(tmp_path))
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "run.toml"]
    assert (full / "run.toml").read_text() == "mine"


def test_an_empty_folder_will_do_but_not_the_one_we_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(tmp_path).config.is_file()
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(ConfigError, match="the folder you are in"):
        init(Path())


def test_a_folder_that_was_filled_meanwhile_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OSError, match="not empty"), whole_folder(out, replace=False):
        out.mkdir()
        (out / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_a_terminated_init_leaves_nothing(tmp_path: Path) -> None:
    """The base takes minutes to make; here it takes for ever."""
    code = (
        "import sys, time\n"
        "from echo_hub import cli\n"
        "from echo_hub.models import make_base\n"
        "def never(*_):\n"
        "    print('making', flush=True)\n"
        "    time.sleep(1000)\n"
        "make_base.make_base = never\n"
        "sys.argv = ['echo-hub', 'init', 'run', '--model', 'countdown']\n"
        "cli.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "making\n"
            assert list(tmp_path.iterdir()) == [tmp_path / ".run.draft"]
            process.terminate()
            assert process.wait(120) == 143
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []
