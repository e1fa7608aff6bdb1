"""Each page of the console has its pictures, and each picture has its page."""

import pytest

from tests.screenshots.gallery import GALLERY, gallery
from tests.screenshots.pictures import FOLDER, NOT_PAGES, PICTURES, SCHEMES, WIDTHS, all_files
from tests.support.console.addresses import routes

PAGES = sorted({route.path for route in routes("GET")} - NOT_PAGES)
MAX_TOTAL_BYTES = 4_000_000
RENEW = "`make screenshots` takes them again"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_pictured(path: str) -> None:
    assert [one.name for one in PICTURES if one.route == path], f"{path} has no picture in tests/screenshots"


def test_a_picture_is_of_a_page_and_has_a_name_of_its_own() -> None:
    assert {one.route for one in PICTURES} <= {*PAGES}
    assert len({one.name for one in PICTURES}) == len(PICTURES)
    assert {route.path for route in routes("GET")} >= NOT_PAGES


def test_each_page_has_its_files_and_no_others_are_there() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(all_files()), RENEW
    assert len([*all_files()]) == len(PICTURES) * len(WIDTHS) * len(SCHEMES)


def test_the_pictures_are_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < MAX_TOTAL_BYTES


def test_the_gallery_shows_all_of_them() -> None:
    assert GALLERY.read_text() == gallery(), RENEW
