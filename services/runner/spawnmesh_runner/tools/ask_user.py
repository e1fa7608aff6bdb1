"""The tool `ask_user`: ask the person a question, and wait for the answer without a runner."""

from typing import Annotated

from pydantic import Field, StringConstraints
from spawnmesh.session.v1 import approval_pb2

from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, Tool


class AskUser(Arguments):
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)] = Field(
        description="The question, complete in itself: the person may see nothing else."
    )
    choices: list[Annotated[str, StringConstraints(min_length=1, max_length=250)]] = Field(
        default_factory=list,
        max_length=32,
        description="The possible answers, if there are only some. Leave it out for a free answer.",
    )


async def _execute(scope: CallScope, arguments: AskUser) -> Result:
    choices = list(dict.fromkeys(arguments.choices))
    await scope.ask(approval_pb2.Question(text=arguments.question, choices=choices))


ASK_USER = Tool(
    name="ask_user",
    description=(
        "Asks the person whom you work for, and gives the answer. It can take hours, and files in your"
        " workspace are lost meanwhile; published ones are kept. Ask only if you cannot go on without an"
        " answer."
    ),
    arguments=AskUser,
    execute=_execute,
    idempotent=True,
)
