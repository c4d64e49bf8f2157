"""/api/v1/versions/{version}/export: a version as a zip file for everybody else's tools."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated, Literal

import trio
from fastapi import APIRouter, Query
from fastapi import Path as InPath
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from echo_hub.api.errors import RESPONSES, ApiError
from echo_hub.api.site import Here

router = APIRouter(tags=["versions"])

_ONE_AT_A_TIME = "another export is being made; try again in a moment."


@router.get(
    "/versions/{version}/export",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/zip": {}}, "description": "A zip file."},
        409: RESPONSES[409],
        503: RESPONSES[503],
    },
)
async def export_version(
    site: Here,
    version: Annotated[int, InPath(ge=0, le=2**31)],
    form: Annotated[Literal["adapter", "merged"], Query(description="A PEFT adapter, or all.")] = (
        "adapter"
    ),
) -> FileResponse:
    """The version as `echo-hub export` writes it, zipped. A merged model takes its time."""
    if site.exporting.locked():
        raise ApiError(503, "busy", _ONE_AT_A_TIME)
    async with site.exporting:
        root = site.view.folder.root
        place = Path(await trio.to_thread.run_sync(_draft, root))
        try:
            await _export(root, place / "out", version, merged=form == "merged")
            name = f"{site.view.config.run.id}-v{version}-{form}.zip"
            await trio.to_thread.run_sync(_zip, place / "out", place / name)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return FileResponse(
        place / name,
        media_type="application/zip",
        filename=name,
        background=BackgroundTask(shutil.rmtree, place, ignore_errors=True),
    )


def _draft(root: Path) -> str:
    return tempfile.mkdtemp(prefix=".export-", dir=root)


async def _export(root: Path, out: Path, version: int, *, merged: bool) -> None:
    """In a process of its own: merging needs torch, and minutes of a processor."""
    command = [sys.executable, "-m", "echo_hub.cli", "export", str(root), str(out)]
    command += ["--version", str(version), "--json", *(["--merge"] if merged else [])]
    done = await trio.run_process(
        command,
        stdin=b"",
        stdout=DEVNULL,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").removeprefix("error: ").strip()
        raise ApiError(409, "no_export", said[-500:] or "the export failed.")


def _zip(folder: Path, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                archive.write(one, Path(file.stem) / one.relative_to(folder))
