"""Who may ask what: hosts, sites, tokens, sessions, sizes, and what every response carries."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from served import Served

from echo_hub.api.guards import MOST_BODY
from echo_hub.api.security import Doorman, TooManyTriesError, is_cross_site, is_ours, same
from echo_hub.api.server import read_token
from echo_hub.config.dashboard import DashboardSection
from echo_p2p.errors import ConfigError

TOKEN = "a long enough secret"


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_any_address_but_loopback_needs_a_token_and_tls() -> None:
    DashboardSection()
    DashboardSection(host="::1")
    for wrong in (
        {"host": "0.0.0.0"},
        {"host": "0.0.0.0", "token_file": "token"},
        {"host": "192.0.2.1", "tls_cert": "c", "tls_key": "k"},
        {"tls_cert": "c"},
        {"host": "example.org"},
    ):
        with pytest.raises(ValidationError):
            DashboardSection.model_validate(wrong)
    DashboardSection(host="0.0.0.0", token_file="t", tls_cert="c", tls_key="k")
    DashboardSection(host="0.0.0.0", token_file="t", plain_http=True)


def test_a_web_site_cannot_point_its_name_here() -> None:
    for host in ("localhost", "localhost:8420", "127.0.0.1:1", "[::1]:80", "10.1.2.3", "hub.lan:9"):
        assert is_ours(host, {"hub.lan"}), host
    for host in (None, "", "evil.example", "127.0.0.1.evil.example:8420", "a@localhost", "x" * 999):
        assert not is_ours(host, {"hub.lan"}), host


@given(st.text())
def test_no_host_header_is_too_strange(host: str) -> None:
    is_ours(host, {"hub.lan"})
    assert same(host, host)
    assert not same(host, host + "x")


def test_another_sites_page_is_told_by_its_headers() -> None:
    here = {"host": "127.0.0.1:8420"}
    assert not is_cross_site(here, "http")
    assert not is_cross_site(here | {"origin": "http://127.0.0.1:8420"}, "http")
    assert is_cross_site(here | {"origin": "http://evil.example"}, "http")
    assert is_cross_site(here | {"origin": "https://127.0.0.1:8420"}, "http")
    assert is_cross_site(here | {"origin": "null"}, "http")
    assert is_cross_site(here | {"sec-fetch-site": "cross-site"}, "http")
    assert is_cross_site(here | {"sec-fetch-site": "same-site"}, "http")


def test_wrong_tokens_are_slowed_down_by_address_and_lock_nobody_else_out() -> None:
    door = Doorman(TOKEN)
    for _ in range(5):
        assert not door.check_token("wrong", "192.0.2.1", 0.0)
    for _ in range(50):  # what is refused unread does not count
        with pytest.raises(TooManyTriesError) as refused:
            door.check_token(TOKEN, "192.0.2.1", 0.0)
    assert refused.value.wait_s == pytest.approx(30.0)
    assert door.check_token(TOKEN, "192.0.2.2", 0.0)
    assert door.check_token(TOKEN, "192.0.2.1", 31.0)
    for last in range(5):
        door.check_token("wrong", f"2001:db8::{last}", 0.0)
    with pytest.raises(TooManyTriesError):  # of IPv6, a whole /64 is one
        door.check_token(TOKEN, "2001:db8::99", 0.0)


def test_sessions_end() -> None:
    door = Doorman(TOKEN)
    first, session = door.open_session(0.0)
    assert door.session(first, 10.0) is not None
    assert door.session(first + "x", 10.0) is None
    assert door.session(None, 10.0) is None
    assert door.session(first, 10.0 + 13 * 3600) is None
    second, _ = door.open_session(0.0)
    for day in range(1, 16):
        door.session(second, day * 11 * 3600.0)
    assert door.session(second, 16 * 11 * 3600.0) is None  # used all the time, and too old
    third, other = door.open_session(0.0)
    assert other.csrf != session.csrf
    door.close_session(third)
    assert door.session(third, 1.0) is None


def test_a_token_file_is_private_and_long_enough(tmp_path: Path) -> None:
    token = read_token(tmp_path / "token")
    assert len(token) > 40
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert read_token(tmp_path / "token") == token
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(ConfigError, match="read by others"):
        read_token(tmp_path / "token")
    (tmp_path / "short").write_text("secret")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(ConfigError, match="shorter"):
        read_token(tmp_path / "short")


def test_without_a_token_this_machine_may_all_but_other_sites_nothing(served: Served) -> None:
    node = served.nodes[1]
    with served.client() as client:
        assert client.get("/api/v1/overview").status_code == 200
        ban = f"/api/v1/nodes/{node}/ban"
        assert code(client.post(ban, json={})) == (403, "csrf")
        csrf = client.get("/api/v1/session").json()["csrf"]
        evil = {"x-csrf-token": csrf, "origin": "http://evil.example"}
        assert code(client.post(ban, json={}, headers=evil)) == (403, "cross_site")
        rebound = {"host": "evil.example"}
        assert code(client.get("/api/v1/overview", headers=rebound)) == (400, "wrong_host")
        answer = client.get("/api/v1/overview", headers={"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
        for answer in (client.get("/api/v1/overview"), client.get("/nope"), client.get("/api/x")):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] in ("no-store", "no-cache")
            assert "server" not in answer.headers


def test_bodies_are_bounded_and_typed(browser: httpx.Client, served: Served) -> None:
    ban = f"/api/v1/nodes/{served.nodes[1]}/ban"
    huge = b'{"why": "' + b"x" * MOST_BODY + b'"}'
    headers = {"content-type": "application/json"}
    assert code(browser.post(ban, content=huge, headers=headers)) == (413, "too_large")
    pieces = (huge[i : i + 4096] for i in range(0, len(huge), 4096))
    assert code(browser.post(ban, content=pieces, headers=headers)) == (413, "too_large")
    for wrong in ({"why": 7}, {"why": ""}, {"why": "x" * 501}, {"other": "x"}, [], "x", None):
        assert code(browser.post(ban, json=wrong)) == (422, "invalid"), wrong
    assert code(browser.post(ban, content=b"{", headers=headers)) == (422, "invalid")
    text = {"content-type": "text/plain"}  # what a form of another site could send
    assert code(browser.post(ban, content=b'{"why": "x"}', headers=text)) == (422, "invalid")
    for strange in ("1" * 50, "0" * 52, "x" * 999, "..%2f..%2fetc%2fpasswd"):
        assert browser.get(f"/api/v1/nodes/{strange}").status_code in (404, 422), strange
    assert "import" not in browser.get("/static/../../config/dashboard.py").text
    assert browser.get("/static/%2e%2e/__init__.py").status_code == 404


def test_with_a_token_a_log_in_is_needed_over_tls(locked: Served) -> None:
    with locked.client() as client:
        assert locked.url.startswith("https://")
        for path in (
            "/api/v1/overview",
            "/metrics",
            "/api/v1/events",
            "/api/docs",
            "/api/v1/public",
        ):
            assert client.get(path).status_code == 401, path
        page = client.get("/", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/login")
        assert client.get("/login").status_code == 200
        assert client.get("/api/v1/health").status_code == 200
        wrong = client.post("/api/v1/session", json={"token": "x"})
        assert code(wrong) == (401, "wrong_token")
        right = client.post("/api/v1/session", json={"token": TOKEN})
        assert right.status_code == 200
        cookie = right.headers["set-cookie"]
        for part in ("__Host-echo-hub=", "HttpOnly", "Secure", "SameSite=strict", "Path=/"):
            assert part.lower() in cookie.lower()
        assert TOKEN not in right.text + cookie
        assert client.get("/api/v1/overview").status_code == 200
        assert "max-age" in client.get("/api/v1/overview").headers["strict-transport-security"]
        assert code(client.post("/api/v1/run/resume")) == (403, "csrf")
        csrf = {"x-csrf-token": right.json()["csrf"]}
        assert code(client.post("/api/v1/run/resume", headers=csrf)) == (409, "refused")
        assert client.delete("/api/v1/session", headers=csrf).status_code == 200
        assert client.get("/api/v1/overview").status_code == 401
    with locked.client(headers={"authorization": f"Bearer {TOKEN}"}) as program:
        assert program.get("/metrics").status_code == 200
        assert code(program.post("/api/v1/run/resume")) == (409, "refused")
    with locked.client(headers={"authorization": "Bearer wrong"}) as stranger:
        statuses = [stranger.get("/api/v1/overview").status_code for _ in range(8)]
    assert set(statuses) == {401, 429}
    with pytest.raises(httpx.ConnectError):  # nobody vouches for the certificate
        httpx.get(locked.url + "/api/v1/health")


def test_a_client_that_says_nothing_or_nonsense_harms_nobody(locked: Served) -> None:
    port = int(locked.url.rpartition(":")[2])
    silent = socket.create_connection(("127.0.0.1", port))
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # not TLS
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", port)) as plain:
        tls = old.wrap_socket(plain)
        tls.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b"400" in tls.recv(100)
    with locked.client() as client:
        assert client.get("/api/v1/health").status_code == 200
    silent.close()
    raw.close()
