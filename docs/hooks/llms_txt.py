"""Write each page of the site as Markdown beside it, and `llms.txt`, which lists them for programs.

A page at `howto/models/` has its Markdown at `howto/models.md`. mkdocs loads this file as a hook
(`hooks` in mkdocs.yml).
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

LIST = "llms.txt"

_OTHERS = {"adr": "Decisions", "reference": "API"}
"""The sections of pages that the navigation does not have, by their folder."""

_pages: dict[str, Page] = {}
"""All pages of the build by their paths, in the order of the navigation."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Begin a build."""
    _pages.clear()
    _pages.update((page.file.src_uri, page) for page in nav.pages)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Remember a page that the navigation does not have."""
    _pages[page.file.src_uri] = page


def on_post_build(config: MkDocsConfig) -> None:
    """Write the files into the site."""
    site = Path(config.site_dir)
    for path, page in _pages.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.markdown or "")
    (site / LIST).write_text(listed(config, [*_pages.values()]))


def listed(config: MkDocsConfig, pages: list[Page]) -> str:
    """Return `llms.txt`: the pages with their sections, in the order of the navigation."""
    sections: dict[str, list[Page]] = {}
    for page in pages:
        sections.setdefault(_section_of(page), []).append(page)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for name, members in sections.items():
        lines += [f"## {name}", ""]
        lines += [f"- [{page.title}]({page.file.src_uri})" for page in members]
        lines.append("")
    return "\n".join(lines)


def _section_of(page: Page) -> str:
    if isinstance(page.parent, Section):
        return page.parent.title
    return _OTHERS.get(page.file.src_uri.partition("/")[0], "Pages")
