"""How fast is one stream? 64 MiB between two processes: ours, raw TCP, asyncio TLS 1.3.

Ours is a `Stream` of 1 MiB frames over TCP, Noise and Yamux. Each path is measured `--rounds`
times, one after the other within a round so that all see the same machine; the median counts.
`ratio` is ours over asyncio TLS: at least 0.5 is what the project asks for. `requests` is how many
small requests a second one peer answers another, one at a time and 16 at a time.

    python benchmarks/stream.py [--json] [--mib 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from echo_p2p.identity import Identity
from echo_p2p.net.host import Peer, open_peer
from echo_p2p.net.stream import Remote, Stream

MIB = 1024 * 1024
PROTOCOL, ECHO = "/bench/stream/1", "/bench/echo/1"
FRAME = b"\x5a" * MIB
REQUESTS = 2000


# --- the receiving process: prints where it listens, takes any number of transfers ---


def receive_tcp(_: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _address = server.accept()
            with connection:
                left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
                while left:
                    left -= len(connection.recv(256 * 1024))
                connection.sendall(b"k")


def receive_tls(folder: str) -> None:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = int.from_bytes(await reader.readexactly(8), "big")
        while left:
            left -= len(await reader.read(256 * 1024))
        writer.write(b"k")
        await writer.drain()
        writer.close()

    async def serve() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context, limit=4 * MIB)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(serve())


def receive_ours(_: str) -> None:
    async def take(remote: Remote, stream: Stream) -> None:
        frames = int.from_bytes(await stream.receive(8, deadline_s=30), "big")
        for _number in range(frames):
            await stream.receive(MIB, deadline_s=30)
        await stream.send(b"k")

    async def echo(remote: Remote, body: bytes) -> bytes:
        return body

    async def serve() -> None:
        async with open_peer(Identity.create(), ["/ip4/127.0.0.1/tcp/0"]) as peer:
            peer.serve_stream(PROTOCOL, take)
            peer.serve(ECHO, echo, max_request=1024, deadline_s=10)
            print(peer.addresses[0], flush=True)
            await trio.sleep_forever()

    trio.run(serve)


RECEIVERS = {"tcp": receive_tcp, "tls": receive_tls, "ours": receive_ours}


# --- the sending process: seconds for one transfer ------------------------------------------------


def send_tcp(where: str, mib: int, _: str) -> float:
    with socket.create_connection(("127.0.0.1", int(where))) as connection:
        started = time.perf_counter()
        connection.sendall((mib * MIB).to_bytes(8, "big"))
        for _number in range(mib):
            connection.sendall(FRAME)
        assert connection.recv(1) == b"k"
        return time.perf_counter() - started


def send_tls(where: str, mib: int, folder: str) -> float:
    async def send() -> float:
        context = ssl.create_default_context(cafile=f"{folder}/cert.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(where), ssl=context)
        started = time.perf_counter()
        writer.write((mib * MIB).to_bytes(8, "big"))
        for _number in range(mib):
            writer.write(FRAME)
            await writer.drain()
        assert await reader.readexactly(1) == b"k"
        seconds = time.perf_counter() - started
        writer.close()
        return seconds

    return asyncio.run(send())


async def transfer(peer: Peer, peer_id: str, mib: int) -> float:
    async with peer.stream(peer_id, PROTOCOL, deadline_s=10) as stream:
        started = time.perf_counter()
        await stream.send(mib.to_bytes(8, "big"))
        for _number in range(mib):
            await stream.send(FRAME)
        assert await stream.receive(8, deadline_s=30) == b"k"
        return time.perf_counter() - started


def send_ours(where: str, mib: int, _: str) -> float:
    async def send() -> float:
        async with open_peer(Identity.create(), []) as peer:
            return await transfer(peer, await peer.connect([where], deadline_s=10), mib)

    return trio.run(send)


SENDERS = {"tcp": send_tcp, "tls": send_tls, "ours": send_ours}


def request_rates(where: str) -> dict[str, float]:
    """Small requests a second, by how many are under way at a time."""

    async def run(at_a_time: int) -> float:
        async with open_peer(Identity.create(), []) as peer:
            peer_id = await peer.connect([where], deadline_s=10)

            async def one_by_one(number: int) -> None:
                for _number in range(number):
                    await peer.request(peer_id, ECHO, b"x" * 64, max_reply=1024, deadline_s=10)

            await one_by_one(1)
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _number in range(at_a_time):
                    nursery.start_soon(one_by_one, REQUESTS // at_a_time)
            return REQUESTS / (time.perf_counter() - started)

    return {str(at_a_time): trio.run(run, at_a_time) for at_a_time in (1, 16)}


def make_certificate(folder: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    Path(folder, "cert.pem").write_bytes(certificate.public_bytes(pem))
    Path(folder, "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--receive", choices=RECEIVERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        RECEIVERS[options.receive](options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_certificate(folder)
        report(measure(folder, options.mib, options.rounds), as_json=options.json)


def measure(folder: str, mib: int, rounds: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--folder", folder, "--receive"]
    children = {
        path: subprocess.Popen([*command, path], stdout=subprocess.PIPE, text=True)
        for path in RECEIVERS
    }
    try:
        where = {path: child.stdout.readline().strip() for path, child in children.items()}  # type: ignore[union-attr]
        speeds: dict[str, list[float]] = {path: [] for path in SENDERS}
        for _round in range(rounds):
            for path, send in SENDERS.items():
                speeds[path].append(mib * MIB / 1e6 / send(where[path], mib, folder))
        rates = request_rates(where["ours"])
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    median = {path: round(statistics.median(values), 1) for path, values in speeds.items()}
    return {
        "mib": mib,
        "rounds": rounds,
        "mb_per_s": median,
        "ratio": round(median["ours"] / median["tls"], 3),
        "ratio_to_tcp": round(median["ours"] / median["tcp"], 3),
        "requests_per_s": {key: round(value) for key, value in rates.items()},
    }


def report(result: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    speeds = result["mb_per_s"]
    rates = result["requests_per_s"]
    assert isinstance(speeds, dict)
    assert isinstance(rates, dict)
    print(f"one stream of {result['mib']} MiB, median of {result['rounds']}")
    for path, name in (("tcp", "raw TCP"), ("tls", "asyncio TLS 1.3"), ("ours", "echo-p2p")):
        print(f"  {name:<16}{speeds[path]:>8} MB/s")
    print(f"  ours / TLS      {result['ratio']:>8}   (asked for: 0.5)")
    print(f"  ours / TCP      {result['ratio_to_tcp']:>8}")
    print(f"small requests: {rates['1']} /s one at a time, {rates['16']} /s sixteen at a time")


if __name__ == "__main__":
    main()
