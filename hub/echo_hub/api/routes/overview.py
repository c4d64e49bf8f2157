"""/api/v1/overview: is it learning, is it healthy, what limits it?"""

from __future__ import annotations

from fastapi import APIRouter

from echo_hub.api.models import Overview
from echo_hub.api.site import Here

router = APIRouter(tags=["overview"])


@router.get("/overview")
async def get_overview(site: Here) -> Overview:
    """Everything that the first page shows; at most half a second old."""
    return await site.overview.get()
