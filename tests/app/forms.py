"""A browser without script: it reads the forms of a page, fills them in and sends them."""

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)
    required: set[str] = field(default_factory=set)


class Forms(HTMLParser):
    """The forms of a page, with what is filled in already."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self.open: Form | None = None
        self.select: str | None = None
        self.area: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.open = Form(attributes.get("action", ""), attributes.get("method", "get"))
            self.found.append(self.open)
        form = self.open
        if form is None:
            return
        name = attributes.get("name", "")
        if name and "required" in attributes:
            form.required.add(name)
        if tag == "input" and name:
            if attributes.get("type") not in ("radio", "checkbox") or "checked" in attributes:
                form.fields[name] = attributes.get("value", "on" if attributes.get("type") == "checkbox" else "")
        elif tag == "select":
            self.select = name
        elif tag == "option" and self.select and ("selected" in attributes or self.select not in form.fields):
            form.fields[self.select] = attributes.get("value", "")
        elif tag == "textarea":
            self.area = name
            form.fields[name] = ""
        elif tag == "button":
            form.buttons.append(name)

    def handle_data(self, data: str) -> None:
        if self.area and self.open:
            self.open.fields[self.area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.open = None
        elif tag == "select":
            self.select = None
        elif tag == "textarea":
            self.area = None


def form_on(text: str, action: str, method: str | None = None) -> Form:
    """The form that goes there; `method` as the API has it."""
    forms = [form for form in Forms(text).found if form.action == action]
    forms = [form for form in forms if form.method == ("get" if method == "GET" else "post")] or forms
    if method not in (None, "GET"):
        forms = [form for form in forms if form.fields.get("form_method", "POST") == method]
    assert forms, f"no form to {action} among {[form.action for form in Forms(text).found]}"
    return forms[0]


async def fill(
    web: httpx.AsyncClient, page: str, action: str, method: str | None = None, **values: Any
) -> httpx.Response:
    """Load a page, fill in one of its forms and send it. `from_` is the field `from`."""
    shown = await web.get(page)
    assert shown.status_code == 200, shown.text
    form = form_on(shown.text, action, method)
    typed = {name.rstrip("_").replace("__", "."): value for name, value in values.items()}
    unknown = typed.keys() - form.fields.keys() - {"consent", "cancel_running", "reprocess", "preview"}
    assert not unknown, f"the form has no field {unknown}; it has {sorted(form.fields)}"
    fields = {**form.fields, **typed}
    assert all(fields[name] for name in form.required), f"{form.required} must be filled in"
    if form.method == "get":
        return await web.get(action, params={name: value for name, value in fields.items() if value})
    return await web.post(action, data=fields)


async def done(web: httpx.AsyncClient, answer: httpx.Response) -> str:
    """The text of the page that follows a form that did its work."""
    assert answer.status_code == 303, f"{answer.status_code}: {words(answer.text)}"
    shown = await web.get(answer.headers["location"])
    assert shown.status_code == 200
    return words(shown.text)


def words(text: str) -> str:
    """Return the visible text of a page."""
    inner = re.sub(r"(?s)<datalist.*?</datalist>|<title>.*?</title>", " ", text.partition("<main")[2] or text)
    inner = inner.partition("</main>")[0]
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", inner)))
