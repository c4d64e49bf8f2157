"""Filters on system calls (Linux's seccomp), built without a library, for x86-64 and arm64.

Pure but for `install`. A filter is a program of classic BPF that the kernel runs before each system
call of a process and of all that it starts; it needs no privilege and cannot be taken off again.
Calls of another ABI than the machine's own are refused, since their numbers mean other calls.
Numbers are from the kernel's tables (asm/unistd.h of each architecture).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable

from echo_p2p.errors import ProcessError

_NUMBERS = {  # x86-64, arm64; -1: there is no such call
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
    "fork": (57, -1),
    "vfork": (58, -1),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
_MACHINES = {"x86_64": 0, "amd64": 0, "aarch64": 1, "arm64": 1}
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_SECCOMP = (317, 277)
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # BPF
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CLONE_THREAD = 0x00010000
_AF_UNIX, _AF_NETLINK, _SOCK_DGRAM = 1, 16, 2
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

_OTHER_PROCESSES = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
_NO_USE = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount",
    "fsopen", "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd",
)  # fmt: skip


def machine() -> int | None:
    """Index of this machine's column in the tables; None where there are no such filters."""
    return _MACHINES.get(platform.machine().lower()) if sys.platform == "linux" else None


def no_network(column: int) -> bytes:
    """No new sockets ("network is unreachable"), and no way into other processes.

    Netlink and datagrams between processes of this machine are left: bubblewrap, which makes
    sandboxes, sets up their loopback with them.
    """
    socket = _NUMBERS["socket"][column]
    return _program(
        column,
        [
            *(_refuse(column, name) for name in (*_OTHER_PROCESSES, "io_uring_setup")),
            [
                _op(_EQUAL, socket, miss=8),
                _op(_LOAD, _ARGUMENT_AT),
                _op(_EQUAL, _AF_NETLINK, hit=5),
                _op(_EQUAL, _AF_UNIX, miss=3),
                _op(_LOAD, _ARGUMENT_AT + 8),
                _op(_AND, 0xF),  # without the flags
                _op(_EQUAL, _SOCK_DGRAM, hit=1),
                _op(_RETURN, _ERRNO | errno.ENETUNREACH),
                _op(_RETURN, _ALLOW),
            ],
        ],
    )


def one_process(column: int) -> bytes:
    """No further processes (threads are), no namespaces and mounts, no way into other processes."""
    clone = _NUMBERS["clone"][column]
    return _program(
        column,
        [
            *(_refuse(column, name) for name in (*_OTHER_PROCESSES, "io_uring_setup", *_NO_USE)),
            _refuse(column, "fork", errno.EAGAIN),
            _refuse(column, "vfork", errno.EAGAIN),
            _refuse(column, "clone3", errno.ENOSYS),  # its flags are out of a filter's sight
            [
                _op(_EQUAL, clone, miss=4),
                _op(_LOAD, _ARGUMENT_AT),
                _op(_ANY_BIT, _CLONE_THREAD, hit=1),
                _op(_RETURN, _ERRNO | errno.EAGAIN),
                _op(_RETURN, _ALLOW),
            ],
        ],
    )


def _op(code: int, value: int, *, hit: int = 0, miss: int = 0) -> bytes:
    """One instruction; `hit` and `miss` are how many to skip after a comparison."""
    return struct.pack("<HBBI", code, hit, miss, value)


def _refuse(column: int, name: str, why: int = errno.EPERM) -> list[bytes]:
    number = _NUMBERS[name][column]
    return [] if number < 0 else [_op(_EQUAL, number, miss=1), _op(_RETURN, _ERRNO | why)]


def _program(column: int, rules: Iterable[list[bytes]]) -> bytes:
    """The rules in order; each leaves the call's number loaded if it does not apply."""
    foreign = _op(_RETURN, _ERRNO | errno.ENOSYS)
    start = [
        _op(_LOAD, _ARCH_AT),
        _op(_EQUAL, _AUDIT_ARCH[column], hit=1),
        foreign,
        _op(_LOAD, _NUMBER_AT),
        *([_op(_AT_LEAST, _X32, miss=1), foreign] if column == 0 else []),
    ]
    return b"".join([*start, *(op for rule in rules for op in rule), _op(_RETURN, _ALLOW)])


def install(program: bytes, column: int) -> None:
    """Put a filter on this process, all its threads; ProcessError if the kernel will not."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    pointer = ctypes.create_string_buffer(header, len(header))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call = (ctypes.c_long(_SECCOMP[column]), _SET_MODE_FILTER, _ALL_THREADS, pointer)
    if libc.syscall(*call) != 0:
        why = os.strerror(ctypes.get_errno())
        raise ProcessError(f"the kernel takes no filter of system calls: {why}.")
