"""Search from every page: things by name or id, pages, and actions. Without script a page, with it a palette."""

from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from rota.frame.http.auth import Role
from rota.frame.web.pages import NavigationItem, engine_of, page, query_values, visible_places
from rota.frame.web.sessions import Viewer
from rota.reports.search import NAMED, search

router = APIRouter()

NAVIGATION: list[NavigationItem] = []
PAGES = {
    "schedules": "/schedules/", "tasks": "/tasks/", "workflows": "/workflows/", "pipelines": "/pipelines/",
    "hosts": "/hosts/", "calendars": "/calendars/", "alarms": "/alarms#", "runs": "/runs/",
}  # fmt: skip
ACTIONS = (  # of operators: words, address
    ("New schedule", "/schedules/new"),
    ("Pause or resume schedules", "/schedules#bulk"),
    ("Freeze all schedules", "/freeze-windows"),
    ("Simulate a time range", "/simulate"),
    ("Pair a host", "/hosts"),
    ("Create an API key", "/settings"),
)


@router.get("/search")
async def find(request: Request, caller: Viewer, part: bool = False) -> Response:
    """Show what matches `q`; with `part` only the list, for the palette."""
    text = query_values(request, "q")["q"] or ""
    links: list[tuple[str, str, str]] = []  # what it is, its name, its address
    if text:
        readable = [name for name in (*NAMED, "runs") if caller.reads(name)]
        for match in await engine_of(request).db.read(search, caller.org_id, text, readable):
            links.append((match.resource.removesuffix("s"), match.name, PAGES[match.resource] + quote(match.key)))
    links += [
        ("page", place.title, place.path) for place in visible_places(request, caller.role) if fits(text, place.title)
    ]
    if caller.role >= Role.OPERATOR:
        links += [("action", words, address) for words, address in ACTIONS if fits(text, words)]
    if text and caller.reads("runs"):
        links += [
            ("runs", f"with “{text}” in their error", f"/runs?error={quote(text)}"),
            ("runs", f"of the target “{text}”", f"/runs?target={quote(text)}"),
        ]
        if "=" in text:
            links.append(("runs", f"with the input {text}", f"/runs?input={quote(text)}"))
    return page(request, "search_results.html" if part else "search.html", q=text, links=links)


def fits(text: str, words: str) -> bool:
    return text.lower() in words.lower()
