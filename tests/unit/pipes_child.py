"""A child process for test_pipes.py: does what it is told, well or badly."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time

import msgspec

from echo_p2p.pipes import ParentPipe


class Echo(msgspec.Struct, frozen=True, tag=True):
    data: bytes


class Do(msgspec.Struct, frozen=True, tag=True):
    what: str


Command = Echo | Do


def do(what: str, pipe: ParentPipe) -> None:
    match what:
        case "print":
            print("printed by python")
            subprocess.run(["echo", "printed by a program"], check=True)
            os.write(1, b"written to descriptor 1\n")
            pipe.send(Echo(os.read(0, 10)))  # descriptor 0 is nobody's pipe now
        case "raise":
            raise ValueError("as I was told")
        case "last words":
            os.write(2, b"a line\nno newline at the end")
            os._exit(7)
        case "hang":
            time.sleep(1000)
        case "huge frame":
            os.write(pipe._out.fileno(), struct.pack(">I", (1 << 30) + 1))
        case "garbage":
            os.write(pipe._out.fileno(), struct.pack(">I", 3) + b"\xc1\xc1\xc1")
        case "close":
            pipe._out.close()
            time.sleep(1000)
        case "half an answer":
            os.write(pipe._out.fileno(), struct.pack(">I", 6) + b"abc")
            os._exit(0)
        case "leave one behind":
            pipe.send(Echo(str(_sleeper()).encode()))
        case "leave one behind and die":
            os.write(2, str(_sleeper()).encode() + b"\n")
            os._exit(7)
        case "fork":
            if os.fork() == 0:
                pipe.send(Echo(b"from the copy"))
            os.wait()
            pipe.send(Echo(b"from the child"))
        case "pid":
            pipe.send(Echo(str(os.getpid()).encode()))
        case "deaf":
            pipe.send(Echo(b"I shall not read on"))
            time.sleep(1000)


def _sleeper() -> int:
    return subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL).pid


def main() -> None:
    pipe = ParentPipe()
    while (command := pipe.receive(Command)) is not None:
        match command:
            case Echo():
                pipe.send(command)
            case Do(what=what):
                do(what, pipe)


if __name__ == "__main__":
    print("started", file=sys.stderr)
    main()
