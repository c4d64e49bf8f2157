"""For how long nobody has touched keyboard or mouse.

Linux asks, in this order and until one knows: GNOME on Wayland (its idle monitor, D-Bus), X (the
screen saver extension), logind (its idle hint), the terminals (when something was last typed).
macOS: ioreg's HIDIdleTime. Windows: GetLastInputInfo.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ANSWER_S = 2.0
_MUTTER = (
    "gdbus", "call", "--session", "--dest", "org.gnome.Mutter.IdleMonitor",
    "--object-path", "/org/gnome/Mutter/IdleMonitor/Core",
    "--method", "org.gnome.Mutter.IdleMonitor.GetIdletime",
)  # fmt: skip


def idle_s() -> float | None:
    """Seconds; None if nothing here can tell."""
    if sys.platform == "darwin":
        return _mac_idle_s()
    if sys.platform == "win32":
        return _windows_idle_s()
    ways: tuple[Callable[[], float | None], ...] = (
        _mutter_idle_s, _x_idle_s, _logind_idle_s, terminals_idle_s,
    )  # fmt: skip
    for way in ways:
        idle = way()
        if idle is not None:
            return idle
    return None


def _output(command: tuple[str, ...]) -> str:
    """What a system's own tool prints; empty if it is not there, fails or hangs."""
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# --- Linux --------------------------------------------------------------------------------------


def _mutter_idle_s() -> float | None:
    if os.environ.get("XDG_SESSION_TYPE") != "wayland":
        return None
    found = re.search(r"uint64 (\d+)", _output(_MUTTER))
    return int(found[1]) / 1000 if found else None


class _ScreenSaver(ctypes.Structure):
    """XScreenSaverInfo of X11/extensions/scrnsaver.h."""

    _fields_ = (
        ("window", ctypes.c_ulong), ("state", ctypes.c_int), ("kind", ctypes.c_int),
        ("til_or_since", ctypes.c_ulong), ("idle", ctypes.c_ulong),
        ("event_mask", ctypes.c_ulong),
    )  # fmt: skip


def _x_idle_s() -> float | None:
    """Not on Wayland, where X sees only what is done in windows of its own."""
    if not os.environ.get("DISPLAY") or os.environ.get("XDG_SESSION_TYPE") == "wayland":
        return None
    names = ctypes.util.find_library("X11"), ctypes.util.find_library("Xss")
    if None in names:
        return None
    x11, xss = (ctypes.CDLL(name) for name in names)
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XDefaultRootWindow.restype = ctypes.c_ulong
    x11.XDefaultRootWindow.argtypes = x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    xss.XScreenSaverQueryInfo.argtypes = [
        ctypes.c_void_p, ctypes.c_ulong, ctypes.POINTER(_ScreenSaver),
    ]  # fmt: skip
    display = x11.XOpenDisplay(None)
    if not display:
        return None
    try:
        info = _ScreenSaver()
        root = x11.XDefaultRootWindow(display)
        known = xss.XScreenSaverQueryInfo(display, root, ctypes.byref(info))
        return info.idle / 1000 if known else None
    finally:
        x11.XCloseDisplay(display)


def _logind_idle_s() -> float | None:
    session = os.environ.get("XDG_SESSION_ID", "self")
    wanted = ("-p", "Type", "-p", "IdleHint", "-p", "IdleSinceHint")
    lines = _output(("loginctl", "show-session", session, *wanted)).splitlines()
    return from_logind(dict(line.split("=", 1) for line in lines if "=" in line), time.time())


def from_logind(session: Mapping[str, str], now: float) -> float | None:
    """From a session's properties. Only desktops set the hint; "no" says: in use."""
    if session.get("Type") not in ("wayland", "x11", "mir"):
        return None
    if session.get("IdleHint") == "yes" and session.get("IdleSinceHint", "").isdecimal():
        return max(0.0, now - int(session["IdleSinceHint"]) / 1e6)
    return 0.0 if session.get("IdleHint") == "no" else None


def terminals_idle_s(root: Path = Path("/dev"), now: float | None = None) -> float | None:
    """Since something was last typed into a terminal; the kernel notes it as the time of access."""
    times = []
    for pattern in ("tty[0-9]*", "pts/[0-9]*"):
        for terminal in root.glob(pattern):
            try:
                times.append(terminal.stat().st_atime)
            except OSError:  # closed meanwhile
                continue
    return max(0.0, (time.time() if now is None else now) - max(times)) if times else None


# --- others -------------------------------------------------------------------------------------


def _mac_idle_s() -> float | None:
    return from_ioreg(_output(("ioreg", "-c", "IOHIDSystem", "-d", "4")))


def from_ioreg(text: str) -> float | None:
    """HIDIdleTime is in nanoseconds."""
    found = re.search(r'"HIDIdleTime"\s*=\s*(\d+)', text)
    return int(found[1]) / 1e9 if found else None


class _LastInput(ctypes.Structure):
    """LASTINPUTINFO of winuser.h."""

    _fields_ = (("size", ctypes.c_uint), ("time", ctypes.c_uint))


def _windows_idle_s() -> float | None:
    windows: Any = getattr(ctypes, "windll", None)
    last = _LastInput(ctypes.sizeof(_LastInput), 0)
    if windows is None or not windows.user32.GetLastInputInfo(ctypes.byref(last)):
        return None
    ticks = int(windows.kernel32.GetTickCount())
    return float((ticks - last.time) % 2**32) / 1000
