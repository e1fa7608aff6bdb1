"""The gallery: a page of the documentation with all pictures, light beside dark."""

from collections.abc import Iterator
from textwrap import fill

from tests.screenshots.pictures import FOLDER, PICTURES, SCHEMES, WIDTHS, Picture

GALLERY = FOLDER.parents[1] / "console-gallery.md"
_COLUMNS = 100
_BEGIN = """# All pages of the console

[Look at the mesh in a browser](howto/console.md) says how to use them. `make screenshots` takes
the pictures: it starts a mesh, lets agents work on it, and writes this page. Each page is shown in
a window of {wide} pixels and on a telephone of {narrow}, in light and in dark colours. Long
pages are cut.
"""


def gallery() -> str:
    """Return the page as Markdown."""
    return "\n".join([_BEGIN.format_map(WIDTHS), *(line for one in PICTURES for line in _section(one))])


def write_gallery() -> None:
    """Write the page."""
    GALLERY.write_text(gallery())


def _section(picture: Picture) -> Iterator[str]:
    yield f"## {picture.title}\n\n{fill(picture.caption, _COLUMNS)}\n"
    for scheme in SCHEMES:
        yield f"{_image(picture, 'wide', scheme)}\n"
    yield f"| {' | '.join(SCHEMES)} |\n|{'---|' * len(SCHEMES)}"
    yield f"| {' | '.join(_image(picture, 'narrow', scheme) for scheme in SCHEMES)} |\n"


def _image(picture: Picture, width: str, scheme: str) -> str:
    file = picture.file(width, scheme).relative_to(GALLERY.parent)
    return f"[![{picture.title}, {width}, {scheme}]({file})]({file})"
