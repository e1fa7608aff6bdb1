"""Write the reference of `spawnmesh`, one page, from the commands themselves.

mkdocs loads this file as a hook (`hooks` in mkdocs.yml).
"""

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from spawnmesh_command.cli.app import build_app
from typer.cli import get_docs_for_click
from typer.main import get_command

PAGE = "reference/command.md"


def page() -> str:
    """Return the page as Markdown."""
    command = get_command(build_app())
    context = typer.Context(command, info_name="spawnmesh")
    return get_docs_for_click(obj=command, ctx=context, name="spawnmesh", title="The command")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    files.append(File.generated(config, PAGE, content=page()))
    return files
