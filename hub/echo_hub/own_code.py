"""An operator's own code by its place: `file:path.py:Name` or `module:package.module:Name`.

It is code of the operator's, named in the operator's configuration, and runs on the operator's
machine, in a scorer's or the learner's process. It never goes to a node.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from echo_p2p.errors import ConfigError


def parted(place: str) -> tuple[str, str]:
    """Path and name in `path:name`; a drive's letter is no path."""
    path, colon, name = place.rpartition(":")
    return (path, name) if colon and name.isidentifier() else (place, "")


def load_file(path: str, *, named_by: str) -> ModuleType:
    """A Python file as a module; a relative path is relative to where the hub is started."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{named_by} names {file}, which is no file.")
    digest = blake2b(str(file).encode(), digest_size=4).hexdigest()  # two may have one name
    spec = importlib.util.spec_from_file_location(f"own_{file.stem}_{digest}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file.", fix="Give it a name that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for what lies beside it
    loader = spec.loader

    def load() -> ModuleType:
        loader.exec_module(module)
        return module

    return _loaded(load, str(file))


def load_module(path: str, *, named_by: str) -> ModuleType:
    """An importable module."""
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(
            f"{named_by} names the module {path!r}, which cannot be imported.",
            fix="Write it like module:package.tasks, or module:package.tasks:Name.",
        )
    return _loaded(lambda: importlib.import_module(path), path)


def load_place(place: str, *, named_by: str = "the configuration") -> Any:
    """The class or function at `file:...:Name` or `module:...:Name`."""
    family, _, rest = place.partition(":")
    path, name = parted(rest)
    if family not in ("file", "module") or not name:
        raise ConfigError(
            f"{named_by} is {place!r}, which names no function.",
            fix="Write it like file:my_code.py:name, or module:package.module:name.",
        )
    load = load_file if family == "file" else load_module
    found = getattr(load(path, named_by=named_by), name, None)
    if not callable(found):
        raise ConfigError(f"{path} has no class or function {name!r}.")
    return found


def _loaded(load: Callable[[], ModuleType], place: str) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:  # whatever it does when it is imported
        raise ConfigError(
            f"{place} cannot be loaded: {type(error).__name__}: {error}", fix="Mend it."
        ) from error
