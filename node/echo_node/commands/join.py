"""`echo-node join`: what was asked, checked; and the node, run in a console, upgraded if asked."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import trio

from echo_node import update
from echo_node.commands.limits import read_book
from echo_node.console import open_console
from echo_node.engines.choice import check_name
from echo_node.paths import NodeFolder, config_file
from echo_node.start import JoinOptions, join
from echo_node.update import Updater
from echo_p2p import PROTOCOL
from echo_p2p.errors import ReleaseError, VersionError
from echo_p2p.release import shipped

log = logging.getLogger(__name__)


def prepared(
    *,
    folder: NodeFolder,
    bootstrap: str | None,
    run: str | None,
    listen: tuple[str, ...],
    config: Path | None,
    limits: list[str],
    threads: int | None,
    max_sequences: int | None,
    engine: str,
    max_upload: str | None,
    max_download: str | None,
    auto_update: bool,
    until_eof: bool,
) -> JoinOptions:
    """The options, as the flags and `node.toml` say; ConfigError for what is wrong in them."""
    check_name(engine)
    path = config_file(config)
    book = read_book(
        path,
        required=config is not None,
        assignments=limits,
        threads=threads,
        upload=max_upload,
        download=max_download,
    )
    return JoinOptions(
        folder=folder,
        bootstrap=bootstrap,
        run=run,
        listen=listen,
        max_sequences=max_sequences,
        engine=engine,
        book=book,
        config=path,
        until_eof=until_eof,
        updater=Updater(shipped(), folder.updates) if auto_update else None,
    )


def run_node(options: JoinOptions, *, json_lines: bool, plain: bool) -> int:
    """Run it; the exit code. With an updater, a newer release is installed before and after."""
    updater = options.updater
    if updater is not None:
        _upgrade(updater, PROTOCOL)
    try:
        with open_console(json_lines=json_lines, plain=plain) as console:
            code: int = trio.run(partial(join, options, console, screen=console.screen))
    except* VersionError:
        if updater is not None:
            _upgrade(updater, None)
        raise
    if updater is not None and updater.ready is not None and code == 0:
        _install(updater)
        update.restart()  # the old one, if that failed
    return code


def _upgrade(updater: Updater, protocol: int | None) -> None:
    """Look for a newer release; if there is one, this program becomes it."""
    try:
        found = updater.look(protocol=protocol)
    except ReleaseError as error:
        log.warning("no newer release was looked for: %s", error)
        return
    if found is not None and _install(updater):
        update.restart()


def _install(updater: Updater) -> bool:
    try:
        updater.install()
    except ReleaseError as error:
        log.warning("%s", error)
        return False
    return True
