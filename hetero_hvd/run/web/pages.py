"""Pages as browsers get them: their files, those that all pages share, what these may do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from hetero_hvd.run.web.operations import Handler

SHARED = Path(__file__).parents[1] / "page"
"""Style, what scripts share, and the plots."""

KINDS = {".js": "text/javascript", ".css": "text/css"}


def page_routes(page: Path, guarded: Callable[[Handler], Handler]) -> list[Route]:
    """A page at `/`, and beside it the scripts and styles of its folder and of all pages.

    Args:
        page: Its HTML.
        guarded: Makes a handler one that only answers whom it may.
    """
    files = [path for folder in (SHARED, page.parent) for path in sorted(folder.iterdir())]
    return [
        Route("/", guarded(_file(page, "text/html"))),
        *(
            Route(f"/{path.name}", guarded(_file(path, KINDS[path.suffix])))
            for path in files
            if path.suffix in KINDS
        ),
    ]


def _file(path: Path, media_type: str) -> Handler:
    async def answer(_request: Request) -> Response:
        return FileResponse(path, media_type=media_type)

    return answer
