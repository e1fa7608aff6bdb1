"""Arguments and options of several commands: ids and names, which a shell can complete."""

from typing import Annotated

import typer

from spawnmesh_command.cli import completion

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION_ID", help="`ses_…`", autocompletion=completion.sessions)
]
AgentId = Annotated[
    str, typer.Argument(metavar="AGENT_ID", help="The agent.", autocompletion=completion.agents)
]
PluginName = Annotated[
    str, typer.Argument(metavar="NAME", help="The plugin.", autocompletion=completion.plugins)
]
WebhookName = Annotated[
    str, typer.Argument(metavar="NAME", help="The webhook.", autocompletion=completion.webhooks)
]
ScheduleName = Annotated[
    str, typer.Argument(metavar="NAME", help="The schedule.", autocompletion=completion.schedules)
]
ApprovalId = Annotated[
    str, typer.Argument(metavar="APPROVAL_ID", help="`apr_…`", autocompletion=completion.approvals)
]
OperationName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Such as services/transcript/operations/opr_….",
        autocompletion=completion.operations,
    ),
]
RunningAgent = Annotated[str, typer.Option("--agent", help="The agent.", autocompletion=completion.agents)]
FirstModel = Annotated[
    str,
    typer.Option("--model", help="A model to call before the agent's own.", autocompletion=completion.models),
]
KeepsFiles = Annotated[
    bool,
    typer.Option("--keep", help="Keep its files when it has ended, if the tenant's settings retain them."),
]
IsExternal = Annotated[
    bool, typer.Option("--external", help="For a harness of your own, not for the mesh's runners.")
]
