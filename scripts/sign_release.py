"""Sign a release, for `echo-node join --auto-update`: writes release.bin beside the wheel.

    python scripts/sign_release.py dist/echo_p2p-0.2.0-py3-none-any.whl RELEASE_KEY.pem

The key is an Ed25519 private key as `echo_p2p.identity` keeps them; it is made if it is not there.
Its peer id and the folder's address go into `echo_p2p/release.toml` of what is built from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

from echo_p2p import SPOKEN
from echo_p2p.identity import Identity
from echo_p2p.release import ENVELOPE, sign_release
from echo_p2p.wire import Release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("key", type=Path)
    asked = parser.parse_args()
    data = asked.wheel.read_bytes()
    release = Release(
        version=asked.wheel.name.split("-")[1],
        protocol=min(SPOKEN),
        wheel=asked.wheel.name,
        size=len(data),
        sha256=hashlib.sha256(data).digest(),
        at=time.time(),
    )
    key = Identity.load_or_create(asked.key)
    (asked.wheel.parent / ENVELOPE).write_bytes(sign_release(release, key))
    print(f"{asked.wheel.parent / ENVELOPE}: release {release.version} by {key.peer_id}")


if __name__ == "__main__":
    main()
