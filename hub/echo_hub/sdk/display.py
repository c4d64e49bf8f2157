"""A live screen while something trains: on a terminal, or as HTML in a notebook."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

_WIDTH = 96
_HTML = '<pre style="line-height:1.2;font-family:monospace">{code}</pre>'


def _nothing() -> None:
    pass


@contextmanager
def showing(draw: Callable[[], RenderableType], show: bool | None) -> Iterator[Callable[[], None]]:
    """Show what `draw` gives for the length of the block; given is what shows it anew.

    Args:
        show: None shows it where there is a terminal or a notebook.
    """
    if show is False:
        yield _nothing
    elif in_notebook():
        yield _in_notebook(draw)
    elif show or Console(stderr=True).is_terminal:
        with Live(console=Console(stderr=True), auto_refresh=False, transient=False) as screen:
            yield lambda: screen.update(draw(), refresh=True)
    else:
        yield _nothing


def in_notebook() -> bool:
    """Does this run in a Jupyter kernel?"""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _in_notebook(draw: Callable[[], RenderableType]) -> Callable[[], None]:
    from IPython.display import HTML, display

    handle: Any = display(HTML(""), display_id=True)
    return lambda: handle.update(HTML(as_html(draw())))


def as_html(screen: RenderableType) -> str:
    """A screen as HTML that carries its own styles; nothing in it is a tag but ours."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_jupyter=False)
    console.print(screen)
    return console.export_html(inline_styles=True, code_format=_HTML)
