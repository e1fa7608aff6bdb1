"""Names of images in a prompt, and image types by their first bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_client.image_names import mime_type_of, named_paths, names_image

ATTACHED = ("a.png", "my chart.PNG", "notes.txt", "图.webp")


@pytest.mark.parametrize(
    ("prompt", "paths"),
    [
        ("Look at a.png.", ["dir/a.png", "a.png"]),
        (
            "Compare `my chart.PNG` with out/plot.jpeg, please",
            ["dir/my chart.PNG", "chart.PNG", "out/plot.jpeg"],
        ),
        ("看a.png吧", ["看a.png", "dir/a.png"]),
        ("图.webp?", ["dir/图.webp", "图.webp"]),
        ("./x.gif (y.JPG) 'z.webp' file:q.png", ["x.gif", "y.JPG", "z.webp", "q.png"]),
        ("sub/a.png and dir/a.png", ["sub/a.png", "dir/a.png"]),
        ("dir/my chart.PNG but not out/my chart.PNG", ["dir/my chart.PNG", "chart.PNG"]),
        ("not out/my chart.PNG", ["chart.PNG"]),
        ("a.png, a.png and again a.png", ["dir/a.png", "a.png"]),
        ("notes.txt a.png.bak a.pngs ba.png-x a.png/b", []),
        ("no images here", []),
        ("", []),
    ],
)
def test_names_are_found_in_their_order_and_each_path_once(prompt: str, paths: list[str]) -> None:
    assert [path for _, path in named_paths(prompt, ATTACHED, "dir")] == paths


@given(st.text(alphabet="ab./ .png\\\n看", max_size=300))
def test_found_names_occur_in_the_prompt(prompt: str) -> None:
    found = named_paths(prompt, ATTACHED, "dir")
    assert all(name in prompt and path.endswith(name.removeprefix("./")) for name, path in found)
    assert len({path for _, path in found}) == len(found)


def test_many_names_are_limited() -> None:
    flood = " ".join(f"{number}.png" for number in range(100_000))
    assert len(named_paths(flood, (), "dir")) == 64
    assert named_paths("x" * 100_000 + ".png", (), "dir") == [("x" * 1020 + ".png", "x" * 1020 + ".png")]


@pytest.mark.parametrize(
    ("head", "mime_type"),
    [
        (b"\x89PNG\r\n\x1a\n...", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x0a\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x0a\x00\x00\x00WAVE", ""),
        (b"<svg/>", ""),
        (b"", ""),
    ],
)
def test_image_types_are_read_from_the_first_bytes(head: bytes, mime_type: str) -> None:
    assert mime_type_of(head) == mime_type


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a.png", True),
        ("see b.JPEG.", True),
        ("a.webp吧", True),
        ("a.pngs", False),
        ("png", False),
        ("", False),
    ],
)
def test_text_names_an_image_by_its_extension(text: str, names: bool) -> None:
    assert names_image(text) is names
