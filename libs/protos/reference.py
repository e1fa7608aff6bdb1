"""Write the API reference of the documentation site from the comments in the contracts.

mkdocs loads this file as a hook (`hooks` in mkdocs.yml): it adds one generated page for each
contract and an index of them, so that the reference cannot differ from what is served.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

# Field numbers of FileDescriptorProto, as paths of comments use them.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _NESTED, _NESTED_ENUM, _VALUE, _METHOD = 2, 3, 4, 2, 2
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


def read_contracts() -> list[FileDescriptorProto]:
    """Compile the contracts with their comments; raise SystemExit if they do not compile."""
    sys.path.insert(0, str(Path(__file__).parent))
    import generate

    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch) / "contracts.binpb"
        generate.compile_contracts(
            "--include_imports", "--include_source_info", f"--descriptor_set_out={image}"
        )
        contracts = FileDescriptorSet.FromString(image.read_bytes())
    return [file for file in contracts.file if file.name.startswith("spawnmesh/")]


class ReferencePage:
    """One page: the services, messages and enums of one contract."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {
            tuple(place.path): place.leading_comments.strip()
            for place in file.source_code_info.location
            if place.leading_comments
        }

    @property
    def path(self) -> str:
        """Return the path of the page below the root of the site's sources."""
        return f"reference/api/{self._file.name.removeprefix('spawnmesh/').removesuffix('.proto')}.md"

    def render(self) -> str:
        """Return the page as Markdown."""
        return "\n\n".join(part for part in self._parts() if part) + "\n"

    def _parts(self) -> Iterator[str]:
        yield f"# {self._file.name.removeprefix('spawnmesh/')}"
        yield self._comment([2])  # The comment of `package`.
        for number, service in enumerate(self._file.service):
            yield from self._service([_SERVICE, number], service)
        for number, message in enumerate(self._file.message_type):
            yield from self._message([_MESSAGE, number], message, "")
        for number, enum in enumerate(self._file.enum_type):
            yield from self._enum([_ENUM, number], enum, "")

    def _comment(self, path: Sequence[int]) -> str:
        """Return a comment as Markdown: a list needs an empty line before it, a continued item its
        indent.
        """
        lines: list[str] = []
        for line in self._comments.get(tuple(path), "").splitlines():
            text = line.removeprefix(" ").rstrip()
            is_item, continues = text.startswith("- "), text.startswith("  ")
            in_list = bool(lines) and lines[-1].startswith(("- ", "  "))
            if lines and lines[-1] and is_item != in_list and not continues:
                lines.append("")
            lines.append(text)
        return "\n".join(lines)

    def _service(self, path: list[int], service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"## {service.name}"
        yield self._comment(path)
        for number, method in enumerate(service.method):
            request = ("stream " if method.client_streaming else "") + _short(method.input_type)
            response = ("stream " if method.server_streaming else "") + _short(method.output_type)
            yield f"### {method.name}"
            yield f"`rpc {method.name}({request}) returns ({response})`"
            yield self._comment([*path, _METHOD, number])

    def _message(self, path: list[int], message: DescriptorProto, outer: str) -> Iterator[str]:
        if message.options.map_entry:
            return
        name = f"{outer}{message.name}"
        yield f"## {name}"
        yield self._comment(path)
        if message.field:
            rows = [
                _row(f"`{field.name}`", f"`{_type(field)}`", self._comment([*path, _FIELD, number]))
                for number, field in enumerate(message.field)
            ]
            yield "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
        for number, nested in enumerate(message.nested_type):
            yield from self._message([*path, _NESTED, number], nested, f"{name}.")
        for number, enum in enumerate(message.enum_type):
            yield from self._enum([*path, _NESTED_ENUM, number], enum, f"{name}.")

    def _enum(self, path: list[int], enum: EnumDescriptorProto, outer: str) -> Iterator[str]:
        yield f"## {outer}{enum.name}"
        yield self._comment(path)
        rows = [
            _row(f"`{value.name}`", str(value.number), self._comment([*path, _VALUE, number]))
            for number, value in enumerate(enum.value)
        ]
        yield "\n".join(["| value | number | meaning |", "|---|---|---|", *rows])


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _type(field: FieldDescriptorProto) -> str:
    kind = _short(field.type_name) if field.type_name else _SCALARS[field.type]
    return f"repeated {kind}" if field.label == FieldDescriptorProto.LABEL_REPEATED else kind


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the generated pages to the site; mkdocs calls it."""
    pages = [ReferencePage(file) for file in read_contracts()]
    lines = [f"- [{page.path.removeprefix('reference/api/').removesuffix('.md')}]" for page in pages]
    links = [
        f"{line}({page.path.removeprefix('reference/api/')})" for line, page in zip(lines, pages, strict=True)
    ]
    index = "# API\n\nThe contracts, page by page. The comments are those of the `.proto` files.\n\n"
    files.append(
        File.generated(config, "reference/api/index.md", content=index + "\n".join(sorted(links)) + "\n")
    )
    for page in pages:
        files.append(File.generated(config, page.path, content=page.render()))
    return files
