"""A hub's API served for tests: real ledger, front, scorer, guard and server, in a thread of its
own; only the learner is a few values, since no test here needs it to learn."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import trio
from test_front import BASE, Node, World, config, until

from echo_hub.api.app import make_app
from echo_hub.api.open import open_site
from echo_hub.api.server import serving
from echo_hub.api.site import Site
from echo_hub.api.view import Reader, View
from echo_hub.control.actions import PauseRun, RunAction
from echo_hub.control.serving import Controls
from echo_hub.guarding import Guarding
from echo_hub.learner.client import Spent
from echo_hub.ledger.ledger import Ledger
from echo_hub.loop import LearnerNow
from echo_hub.orders import Orders, missing_version
from echo_hub.paths import RunFolder
from echo_hub.publish.spread import Spread
from echo_hub.rollouts.evaluation import Estimate, Evaluated
from echo_hub.rollouts.front import Front
from echo_hub.update_facts import UpdateFacts
from echo_p2p.identity import peer_id_of

HOSTILE = "<script>alert(1)</script>\u2028'\"; DROP TABLE nodes;--"
R = TypeVar("R")


@dataclass
class Served:
    """A served API. `run` does something in its thread."""

    url: str
    site: Site
    front: Front
    ledger: Ledger
    folder: RunFolder
    nodes: list[str]
    run: Callable[..., Any]
    tls: ssl.SSLContext | bool = True
    learner: list[LearnerNow] = field(default_factory=list)
    joined: set[str] = field(default_factory=set)  # and in session, of whom nothing else is known

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.tls, timeout=30, **options)


@contextmanager
def serve(
    root: Path, *, public: bool = False, tls: bool = False, token: str | None = None
) -> Iterator[Served]:
    dashboard: dict[str, Any] = {"port": 0, "public": public}
    trust: ssl.SSLContext | bool = True
    if tls:
        trust = make_certificate(root)
        dashboard |= {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    ready = threading.Event()
    made: list[Served] = []
    failed: list[BaseException] = []

    def thread() -> None:
        try:
            trio.run(_serve, root, dashboard, token, trust, made, ready)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failed.append(error)
            ready.set()

    worker = threading.Thread(target=thread, daemon=True)
    worker.start()
    ready.wait(120)
    if failed:
        raise failed[0]
    try:
        yield made[0]
    finally:
        made[0].run(_stop)
        worker.join(30)
        if failed:
            raise failed[0]


_STOPS: dict[int, trio.Event] = {}


async def _stop() -> None:
    _STOPS[threading.get_ident()].set()


async def _serve(
    root: Path,
    dashboard: dict[str, Any],
    token: str | None,
    trust: ssl.SSLContext | bool,
    made: list[Served],
    ready: threading.Event,
) -> None:
    settings = config(dashboard=dashboard, alerts={"no_nodes_s": 1e6, "disk_mib": 0})
    world = World(root, settings)
    stop = _STOPS[threading.get_ident()] = trio.Event()
    trio_token = trio.lowlevel.current_trio_token()

    def run(do: Callable[..., Awaitable[R]], *args: Any) -> R:
        return trio.from_thread.run(do, *args, trio_token=trio_token)

    async with world.front() as (front, ledger), trio.open_nursery() as nursery:
        nodes = await _history(front, ledger)
        guarding = Guarding(
            front=front,
            ledger=ledger,
            recovered=(await ledger.recover()).guard,
            refusals=3,
            clock=lambda: 2000.0,
            on_news=lambda: None,
        )
        folder = RunFolder(root)
        for version in (0, 1):
            folder.adapter(version).mkdir(parents=True)
        now = [_learner()]
        joined: set[str] = set()
        view = View(
            config=settings,
            folder=folder,
            peer_id=nodes[0],
            addresses=lambda: ("/ip4/192.0.2.7/tcp/42420/p2p/" + nodes[0],),
            front=front,
            learner=lambda: now[0],
            spreads=lambda: [SPREAD],
            in_session=lambda: {nodes[1], *joined},
            greeted=lambda _: None,
            reader=Reader(folder.ledger),
            prompts=front._assessor.scorers.prompts,
            do=_controls(nursery, front, ledger, guarding, folder).do,
            clock=lambda: 2000.0,
        )
        async with (
            open_site(view, token=token) as site,
            serving(make_app(site), settings.dashboard, root) as url,
        ):
            made.append(Served(url, site, front, ledger, folder, nodes, run, trust, now, joined))
            ready.set()
            await stop.wait()
        view.reader.close()
        nursery.cancel_scope.cancel()


SPREAD = Spread(
    artifact=b"a" * 32, kind="adapter", version=1, size=1000, at=1000.0, expected=2, reached=2,
    nodes=2, half_s=0.5, most_s=1.0, last_s=1.5, hub_bytes=1000, from_hub=1000, from_peers=3000,
)  # fmt: skip


def _learner() -> LearnerNow:
    update = UpdateFacts(
        version=1, reward=0.5, lag_mean=0.0, lag_max=0, waited_s=0.2, train_s=0.8, tasks={},
        period_s=1.0, spent=Spent(0.7, 0.1),
    )  # fmt: skip
    return LearnerNow(version=1, doing="training", for_s=1.0, recent=(update,))


def _controls(
    nursery: trio.Nursery, front: Front, ledger: Ledger, guarding: Guarding, folder: RunFolder
) -> Controls:
    asked = trio.Event()
    orders = Orders(lambda: asked.set())

    async def carry_out(action: RunAction) -> str:
        if isinstance(action, PauseRun):
            await guarding.pause_at(1, action.why)
            return "paused at version 1"
        raise missing_version(getattr(action, "version", 1), [0])

    async def obey() -> None:
        nonlocal asked
        while True:
            await asked.wait()
            asked = trio.Event()
            await orders.carry_out(carry_out)

    nursery.start_soon(obey)
    return Controls(front=front, guarding=guarding, orders=orders, ledger=ledger, folder=folder)


async def _history(front: Front, ledger: Ledger) -> list[str]:
    """Two nodes' work, an update of some of it, an evaluation, a hostile event."""
    good, odd = Node(front, "good"), Node(front, "odd")
    await good.work(5)
    await odd.work(1)
    await until(front, lambda now: now.buffered == 6)
    await odd.submit(b"no envelope")
    batch = await front.take_batch()
    assert batch is not None
    metrics = {"reward_mean": 0.5, "reward_std": 0.5, "reward_error": 0.1, "loss": -0.25}
    await ledger.commit_update(1, [group.group_id for group in batch], metrics)
    await ledger.record_publication(1, b"manifest 1")
    await ledger.record_event("published", version=1, size=1000, delta_size=400)
    front.advance(1, published=True)
    estimate = Estimate(0.4, 0.3, 0.5, 64)
    await ledger.record_evaluation(Evaluated(0, estimate, {"addmix3": estimate}))
    await ledger.record_event("reply_failed", split="train", index=3, why=HOSTILE)
    return [peer_id_of(node.key) for node in (good, odd)]


def make_certificate(root: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1 in `root`, and a context that trusts it alone."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (root / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (root / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return ssl.create_default_context(cafile=str(root / "cert.pem"))


__all__ = ["BASE", "HOSTILE", "Served", "serve"]
