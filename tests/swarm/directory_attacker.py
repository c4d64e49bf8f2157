"""A dishonest directory peer, for test_directory.py: it speaks the protocol, and keeps no rule.

store ADDRESS     read store requests (JSON lines) and print what the peer at ADDRESS answered
lie MODE ADDRESS  join at ADDRESS as a peer that answers every search with a lie
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from echo_p2p.directory import hive
from echo_p2p.directory.messages import Open

dht_pb2 = import_module("hivemind.proto.dht_pb2")  # after `hive`, which prepares hivemind
DictionaryDHTValue = import_module("hivemind.dht.storage").DictionaryDHTValue
MSGPackSerializer = import_module("hivemind.utils").MSGPackSerializer
ServicerBase = import_module("hivemind.p2p").ServicerBase
REFUSALS = (import_module("hivemind.p2p").P2PHandlerError, hive.P2PDaemonError, TimeoutError)


async def daemon_at(address: str, *, client_only: bool) -> tuple[Any, Any]:
    options = Open(
        number=0,
        listen=() if client_only else ("/ip4/127.0.0.1/tcp/0",),
        announce=(),
        initial_peers=(),
        client_only=client_only,
        identity_path=None,
    )
    daemon = await hive._start_daemon(options)
    where, peer_id = hive._split(address)
    await daemon._client.connect(peer_id, [where])
    return daemon, peer_id


async def store(address: str) -> None:
    daemon, peer_id = await daemon_at(address, client_only=True)
    stub = ServicerBase.get_stub.__func__(hive._RunRecords, daemon, peer_id)
    for line in sys.stdin:
        wanted = json.loads(line)
        request = dht_pb2.StoreRequest(
            keys=[bytes.fromhex(wanted["place"])],
            subkeys=[bytes.fromhex(wanted["tag"])],
            values=[bytes.fromhex(wanted["value"])],
            expiration_time=[wanted["expiry"]],
            in_cache=[wanted["in_cache"]],
        )
        try:
            response = await stub.rpc_store(request, timeout=5)
            answer = list(response.store_ok)
        except REFUSALS as error:
            answer = type(error).__name__
        print(json.dumps(answer), flush=True)
    await daemon.shutdown()


async def lie(mode: str, address: str) -> None:
    told = 0
    hive._RunRecords._collect_rpc_handlers()  # from the honest methods' annotations

    class _RunRecords(hive._RunRecords):  # the name is part of the protocol
        async def rpc_find(self, request: Any, context: Any) -> Any:
            lies = {
                "dictionary": (
                    dht_pb2.FOUND_DICTIONARY,
                    MSGPackSerializer.dumps(DictionaryDHTValue()),
                ),
                "regular": (dht_pb2.FOUND_REGULAR, b"not an envelope"),
            }
            nonlocal told
            told += 1
            kind, value = lies[mode]
            result = dht_pb2.FindResult(type=kind, value=value, expiration_time=1e300)
            return dht_pb2.FindResponse(results=[result] * len(request.keys), peer=self.node_info)

    hive.node_module.DHTProtocol = _RunRecords
    daemon, peer_id = await daemon_at(address, client_only=False)
    node = await hive.node_module.DHTNode.create(daemon)
    await node.protocol.call_ping(peer_id)
    print("joined", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(told, flush=True)
    await daemon.shutdown()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["store", address]:
            asyncio.run(store(address))
        case ["lie", mode, address]:
            asyncio.run(lie(mode, address))
