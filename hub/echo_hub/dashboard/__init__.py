"""The dashboard: one page of plain HTML, CSS and ES modules, served as it lies here.

Promises: no build step, no inline script or style (the page works under a CSP of `'self'` alone),
no request to any other host. Transcripts and node names reach the page only as text nodes.
"""

from pathlib import Path

ASSETS = Path(__file__).parent / "static"
"""The folder that is served under `/static/`; its `index.html` is every page."""
