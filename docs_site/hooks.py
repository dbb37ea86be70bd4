"""Hooks of MkDocs: they add pages of the root folder and the generated reference, and adapt links to the site."""

import os.path
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import reference
from docs_site.words import WORDS_OF_PAGES

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = {  # by their place in the site
    "project/readme.md": "README.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/architecture.md": "ARCHITECTURE.md",
    "project/security.md": "SECURITY.md",
}
PLACES = {path: uri for uri, path in PROJECT_PAGES.items()}
HISTORY = {"project/changelog.md", "design.md", "index.md"}
LISTS_BOOST = 0.2  # of pages that have every word
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, path in PROJECT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    for uri, text in reference.pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Return the text of a page with links that lead to pages of the site; other files of the project are named."""
    add_search_terms(page)
    source = PurePosixPath(PROJECT_PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    if page.file.src_uri.startswith("reference/"):
        return markdown

    def adapted(match: re.Match[str]) -> str:
        image, text, target, fragment = match.groups()
        path = os.path.normpath(source.parent / target)
        uri = PLACES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if uri is None or files.get_file_from_path(uri) is None:
            return text if path in text else f"{text} (`{path}`)"
        here = os.path.dirname(page.file.src_uri) or "."
        return f"{image}[{text}]({os.path.relpath(uri, here)}{fragment or ''})"

    parts = FENCE.split(markdown)
    return "".join(part if FENCE.fullmatch(part) else LINK.sub(adapted, part) for part in parts)


def add_search_terms(page: Page) -> None:
    """Give a page its words for the search, and its weight: guides come before generated lists and the history."""
    uri = page.file.src_uri
    page.meta["tags"] = list(WORDS_OF_PAGES.get(uri, ()))
    if uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    elif uri in HISTORY or uri.startswith("reference/"):
        page.meta["search"] = {"boost": LISTS_BOOST}
