"""Questions before what cannot be undone."""

import sys
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on standard error. Another answer than yes ends the command with exit code 1.

    Scripts are not asked: standard input is no terminal there.
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
