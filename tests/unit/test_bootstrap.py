"""The bootstrap file: what is accepted, how a refusal is worded, and where the file comes from."""

from __future__ import annotations

import ssl
import threading
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio

from echo_p2p.bootstrap import (
    DEMO_DIRECTORY_SEED,
    DEMO_IDENTITY_SEED,
    Bootstrap,
    is_loopback,
    render_bootstrap,
)
from echo_p2p.bootstrap_source import check_url, default_path, load_bootstrap
from echo_p2p.errors import (
    BootstrapError,
    BootstrapFetchError,
    ConfigError,
    UnreachableError,
    VersionError,
)
from echo_p2p.identity import Identity
from echo_p2p.toml import load_toml, parse_toml

HUB = Identity.from_seed(bytes(32)).peer_id
OTHER = Identity.from_seed(bytes(31) + b"\x01").peer_id
ADDRESSES = (
    f"/ip4/203.0.113.7/tcp/42420/p2p/{HUB}",
    f"/dns4/hub.example/tcp/42420/p2p/{HUB}",
    f"/ip6/2001:db8::1/tcp/42421/p2p/{OTHER}",
)


def text(**changes: object) -> str:
    values = {"network": "test net", "run_id": "first", "hub_key": HUB, "addresses": ADDRESSES}
    return render_bootstrap(**{**values, **changes})  # type: ignore[arg-type]


def test_a_rendered_file_says_what_it_was_given() -> None:
    entry = parse_toml(text(), Bootstrap, source="f").choose("first")
    assert entry.hub_public_key == Identity.from_seed(bytes(32)).public_key
    assert entry.hub_addresses == ADDRESSES[:2]
    assert entry.directory_peers == ADDRESSES[2:]


def test_the_packaged_file_is_the_local_demo_network() -> None:
    entry = load_toml(default_path(), Bootstrap).choose(None)
    assert entry.id == "demo"
    assert entry.hub_key == Identity.from_seed(DEMO_IDENTITY_SEED).peer_id
    directory = Identity.from_seed(DEMO_DIRECTORY_SEED).peer_id
    assert [address.split("/")[-1] for address in entry.directory_peers] == [directory]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"addresses": ADDRESSES[:2]}, "run.0.addresses: Tuple should have at least 3"),
        ({"addresses": (*ADDRESSES[:2], f"/ip4/300.1.1.1/tcp/1/p2p/{OTHER}")}, "is not an address"),
        (
            {"addresses": (*ADDRESSES[:2], "/ip4/1.2.3.4/tcp/1")},
            "run.0.addresses: '/ip4.*does not end in /p2p/",
        ),
        ({"addresses": (*ADDRESSES[:2], f"/ip4/1.2.3.4/udp/1/p2p/{OTHER}")}, "should read /ip4/"),
        ({"addresses": (*ADDRESSES[:2], f"/p2p/{OTHER}")}, "should read"),
        ({"addresses": (*ADDRESSES[:2], "")}, "should read"),
        ({"addresses": (*ADDRESSES[:2], f"/tcp/1/p2p/{OTHER}")}, "should read"),
        ({"hub_key": OTHER[:-1]}, "run.0.hub_key: .* is not"),
        (
            {"hub_key": Identity.from_seed(b"x" * 32).peer_id},
            "run.0.addresses: no address ends in the hub's",
        ),
        ({"run_id": "Not An Id"}, "run.0.id"),
        ({"network": ""}, "network"),
    ],
)
def test_a_wrong_file_is_refused_by_field(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        text(**change)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("protocol = 2", "protocol = 3", r"f:\d+: protocol: the network speaks protocol 3"),
        ("\nhub_key", "\nhub_kye", r"no such key\. Keys here: addresses, hub_key, id"),
        ("protocol = 2\n", "", "protocol: this key is required"),
        ("protocol = 2", "protocol = ", "not valid TOML"),
    ],
)
def test_an_edited_file_is_refused_by_line(old: str, new: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_toml(text().replace(old, new, 1), Bootstrap, source="f")


def test_what_is_wrong_is_told_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_toml(text().replace('id = "first"', 'id = "Bad Run"'), Bootstrap, source="f")
    (only,) = str(caught.value).splitlines()
    assert ": run.0.id: " in only


@pytest.mark.parametrize("seed", [DEMO_IDENTITY_SEED, DEMO_DIRECTORY_SEED])
def test_published_keys_are_refused_off_loopback(seed: bytes) -> None:
    published = Identity.from_seed(seed).peer_id
    local = tuple(f"/ip4/127.0.0.1/tcp/{port}/p2p/{published}" for port in (1, 2, 3))
    hub = f"/ip4/127.0.0.1/tcp/4/p2p/{HUB}"
    text(hub_key=HUB, addresses=(*local, hub))
    text(hub_key=published, addresses=local)
    away = f"/ip4/203.0.113.7/tcp/1/p2p/{published}"
    for key, addresses in ((published, (*local, away)), (HUB, (*local, hub, away))):
        with pytest.raises(ConfigError, match="private keys are published"):
            text(hub_key=key, addresses=addresses)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("/ip4/127.8.0.1", True), ("/ip6/::1", True), ("/dns4/localhost", True),
        ("/ip4/192.168.0.1", False), ("/ip6/2001:db8::1", False), ("/dns/localhost.example", False),
    ],
)  # fmt: skip
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(f"{host}/tcp/1/p2p/{HUB}") is local


def test_addresses_from_elsewhere_are_believed_only_if_they_could_stand_here() -> None:
    entry = parse_toml(text(), Bootstrap, source="f").choose("first")
    moved = f"/ip4/198.51.100.9/tcp/42420/p2p/{HUB}"
    assert entry.believable([moved, ADDRESSES[2], "nonsense", "/ip4/1.2.3.4/tcp/1"]) == (moved,)
    demo = load_toml(default_path(), Bootstrap).choose(None)
    away = demo.hub_addresses[0].replace("127.0.0.1", "198.51.100.9")
    assert demo.believable([away, *demo.hub_addresses]) == demo.hub_addresses


def test_choosing_a_run() -> None:
    both = text() + text(run_id="second").partition("[[run]]")[2].join(("[[run]]", ""))
    network = parse_toml(both, Bootstrap, source="f")
    assert network.choose("second").id == "second"
    with pytest.raises(ConfigError, match="several runs: first, second"):
        network.choose(None)
    with pytest.raises(ConfigError, match="no run 'third'"):
        network.choose("third")
    with pytest.raises(ConfigError, match="same id"):
        parse_toml(both.replace("second", "first"), Bootstrap, source="f")


# --- where it comes from ------------------------------------------------------------------------


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        bodies = {"/good": text().encode(), "/large": b"#" * (2 << 20), "/latin": b"# \xe9"}
        if self.path == "/portal":  # a hotel's network answers everything with its own page
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"<html>Welcome! Please log in.</html>")
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "http://example.invalid/good")
            self.end_headers()
        elif self.path in bodies:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bodies[self.path])
        elif self.path == "/silent":
            self.server.released.wait()  # type: ignore[attr-defined]
        else:
            self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    httpd = HTTPServer(("127.0.0.1", 0), _Server)
    httpd.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.released.set()  # type: ignore[attr-defined]
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def load(source: str | None, deadline_s: float = 20, now: datetime | None = None) -> Bootstrap:
    async def main() -> Bootstrap:
        return await load_bootstrap(source, deadline_s=deadline_s, now=now)

    return trio.run(main)


def test_from_a_file_a_url_and_the_package(server: str, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(text())
    assert load(str(file)) == load(f"{server}/good")
    assert load(None).choose("demo")


@pytest.mark.parametrize(
    ("path", "error", "complaint"),
    [
        ("/missing", UnreachableError, "answered 404"),
        ("/large", ConfigError, "is over"),
        ("/latin", ConfigError, "not UTF-8"),
        ("/moved", ConfigError, "could be changed on its way"),
        ("/moved", ConfigError, "Open a browser, log in"),
        ("/portal", BootstrapFetchError, r"answered with a web page\..* log in"),
    ],
)
def test_a_url_that_gives_no_such_file(
    server: str, path: str, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        load(server + path)


def test_a_silent_server_is_given_up(server: str) -> None:
    with pytest.raises(UnreachableError, match=r"did not arrive|timed out"):
        load(f"{server}/silent", deadline_s=0.2)


def test_only_https_or_loopback() -> None:
    check_url("https://hub.example/bootstrap_peers.toml")
    check_url("http://localhost:8000/b")
    for url in ("http://hub.example/b", "http://127.0.0.1.example/b"):
        with pytest.raises(ConfigError, match="could be changed"):
            check_url(url)
    for url in ("ftp://hub.example/b", "https:///b", "file:///etc/passwd"):
        with pytest.raises(ConfigError, match="not an https"):
            check_url(url)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.toml"):
        load(str(tmp_path / "nowhere.toml"))


def test_a_file_that_has_expired_says_when_and_what_the_clock_says(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(text(expires=datetime(2027, 6, 30, tzinfo=UTC)))
    assert load(str(file), now=datetime(2027, 6, 29, tzinfo=UTC)).expires is not None
    with pytest.raises(BootstrapError, match=r"30 June 2027.*clock says 01 July 2027") as caught:
        load(str(file), now=datetime(2027, 7, 1, tzinfo=UTC))
    assert "newer file" in caught.value.fix
    file.write_text(text().replace("protocol = 2\n", "protocol = 2\nexpires = 2027-06-30\n", 1))
    with pytest.raises(BootstrapError, match="expires"):  # without a time zone
        load(str(file))


@pytest.mark.parametrize(
    ("protocol", "complaint", "fix"),
    [(3, "this program is too old", "Upgrade it: "), (1, "is older than this program's 2", "Ask")],
)
def test_a_network_of_another_protocol_is_no_broken_file(
    tmp_path: Path, protocol: int, complaint: str, fix: str
) -> None:
    """What a newer file has that we do not know is not what is wrong with it."""
    file = tmp_path / "b.toml"
    file.write_text(f"protocol = {protocol}\nnews = 1\n")
    with pytest.raises(VersionError, match=complaint) as caught:
        load(str(file))
    assert caught.value.fix.startswith(fix)


def test_a_certificate_that_is_not_valid_yet_asks_for_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that is a day behind makes every new certificate invalid."""
    from echo_p2p import bootstrap_source

    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("certificate is not yet valid"))

    monkeypatch.setattr("urllib.request.OpenerDirector.open", refuse)
    with pytest.raises(BootstrapFetchError) as caught:
        bootstrap_source._download("https://hub.example/b", 5)
    assert "clock says" in caught.value.fix
