"""HTML as a person and a form see it: visible text, links, and forms with their fields."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_UNSEEN = {"script", "style", "template", "head", "datalist", "option"}
_VOID = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr", "use", "rect", "path", "circle", "line", "polyline", "polygon",
}  # fmt: skip
_BLOCKS = {
    "p", "div", "li", "tr", "td", "th", "h1", "h2", "h3", "h4", "dt", "dd", "summary", "label", "main",
    "header", "pre", "section", "article", "form", "button", "table", "ul", "ol", "dl", "br",
}  # fmt: skip


@dataclass(frozen=True)
class Element:
    """An element with its attributes; an attribute without a value has an empty one."""

    tag: str
    attributes: dict[str, str]


@dataclass
class Form:
    """A form. `fields` are the values that a browser sends if the person changes nothing."""

    action: str
    method: str
    encoding: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Page:
    """A page that was read."""

    title: str
    text: str
    """The text that is shown, with one space between words."""
    links: list[str]
    forms: list[Form]
    elements: list[Element]

    def form(self, action: str) -> Form:
        """Return the one form with this action. Raises AssertionError without one."""
        found = [form for form in self.forms if form.action == action]
        assert len(found) == 1, f"forms: {[form.action for form in self.forms]}"
        return found[0]

    def tags(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of each element with this name."""
        return [one.attributes for one in self.elements if one.tag == tag]


def read_html(text: str) -> Page:
    """Return the page of the text. Raises AssertionError for an element that is not closed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, f"not closed: {reader.open}"
    shown = " ".join("".join(reader.shown).split())
    return Page("".join(reader.title).strip(), shown, reader.links, reader.forms, reader.elements)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.title: list[str] = []
        self.shown: list[str] = []
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.elements: list[Element] = []
        self._form: Form | None = None
        self._select: str | None = None
        self._textarea: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append(Element(tag, given))
        if tag not in _VOID and tag != "option":
            self.open.append(tag)
        if tag in _BLOCKS:
            self.shown.append(" ")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "form":
            self._form = Form(
                given.get("action", ""), given.get("method", "get").lower(), given.get("enctype", "")
            )
            self.forms.append(self._form)
        self._take_field(tag, given)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID or tag == "option":
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()
        if tag in _BLOCKS:
            self.shown.append(" ")
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = None
        elif tag == "textarea":
            self._textarea = None

    def handle_data(self, data: str) -> None:
        if self.open[-2:] == ["head", "title"]:
            self.title.append(data)
        elif self._textarea is not None and self._form is not None:
            self._form.fields[self._textarea] += data
        if not _UNSEEN & {*self.open}:
            self.shown.append(data)

    def _take_field(self, tag: str, given: dict[str, str]) -> None:
        if self._form is None:
            return
        name = given.get("name", "")
        if tag == "button":
            self._form.buttons.append(given)
        elif tag == "select" and name:
            self._select = name
        elif tag == "option" and self._select is not None:
            if self._select not in self._form.fields or "selected" in given:
                self._form.fields[self._select] = given.get("value", "")
        elif tag == "textarea" and name:
            self._textarea = name
            self._form.fields[name] = ""
        elif tag == "input" and name and _is_sent(given):
            self._form.fields[name] = given.get("value", "on" if "checked" in given else "")


def _is_sent(given: dict[str, str]) -> bool:
    """Return whether a browser sends the value of the input."""
    kind = given.get("type")
    return kind not in ("submit", "file") and (kind not in ("checkbox", "radio") or "checked" in given)
