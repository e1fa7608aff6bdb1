"""A session as the form of `/start` requests it, and the same call in other languages."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal

from spawnmesh_console.domain.budget_limits import LimitAmounts, LimitTexts, WrongLimit
from spawnmesh_console.domain.shown_text import harmless

DEFAULT_AGENT = "default"
_EXAMPLE_TASK = "Say hello."
_MAX_SHOWN_CHARS = 2000
_URL, _AUTH = '"$SPAWNMESH_URL/v1/sessions"', '--header "authorization: Bearer $SPAWNMESH_TOKEN"'


@dataclass(frozen=True, slots=True)
class RequestedSpawn:
    """The fields of the form. An empty agent or model is the default one."""

    task: str = ""
    agent: str = ""
    model: str = ""
    label: str = ""
    is_open: bool = False
    file_names: tuple[str, ...] = ()
    limits: LimitTexts = field(default_factory=LimitTexts)
    """The limits of its budget. Without any it has none."""

    @classmethod
    def of(cls, fields: Mapping[str, object], file_names: Sequence[str] = ()) -> "RequestedSpawn":
        """Return what the fields ask for. Browsers send each new line as two characters."""

        def text(name: str) -> str:
            value = fields.get(name)
            return value.replace("\r\n", "\n") if isinstance(value, str) else ""

        agent = text("agent").strip()
        return cls(
            text("task"),
            "" if agent == DEFAULT_AGENT else agent,
            text("model").strip(),
            text("label").strip(),
            bool(text("open")),
            tuple(file_names),
            LimitTexts.of(fields),
        )

    @property
    def code_limits(self) -> LimitAmounts:
        """The limits for the code; none while one of them is not written to its end."""
        try:
            return self.limits.limits()
        except WrongLimit:
            return LimitAmounts()


def spawn_code(asked: RequestedSpawn) -> tuple[tuple[str, str], ...]:
    """Return the call in each language, by its name. Without a task it has an example."""
    task = asked.task if asked.task.strip() else _EXAMPLE_TASK
    if len(task) > _MAX_SHOWN_CHARS:
        task = task[:_MAX_SHOWN_CHARS] + "…"
    return (
        ("Python", _python(asked, task)),
        ("TypeScript", _typescript(asked, task)),
        ("curl", _curl(asked, task)),
        ("Command", _command(asked, task)),
    )


def _command(asked: RequestedSpawn, task: str) -> str:
    options = [
        *(part for name, value in _options(asked, "agent").items() for part in (f"--{name}", value)),
        *(["--open"] if asked.is_open else []),
        *(part for text in _budget_option(asked.code_limits) for part in ("--budget", text)),
        *(part for name in asked.file_names for part in ("--attach", name)),
        "--wait",
    ]
    words = [*options, "--", task] if task.startswith("-") else [task, *options]
    return f"spawnmesh spawn {shlex.join(words)}\n"


def _python(asked: RequestedSpawn, task: str) -> str:
    files = ", ".join(_python_text(name) for name in asked.file_names)
    arguments = [
        _python_text(task),
        *(f"{name}={_python_text(value)}" for name, value in _options(asked, "agent").items()),
        *(['mode="SESSION"'] if asked.is_open else []),
        *([f"attachments=[{files}]"] if files else []),
        *(f"budget=Budget({budget})" for budget in _python_budget(asked.code_limits)),
    ]
    imports = "Budget, connect" if asked.code_limits else "connect"
    return (
        f"import asyncio\n\nfrom spawnmesh_client import {imports}\n\n\n"
        "async def main() -> None:\n"
        "    async with connect() as mesh:\n"
        f"        session = await mesh.spawn({_joined(arguments, 12)})\n"
        "        print(session.session_id)\n"
        "        result = await session.result()\n"
        "        print(result.text)\n\n\n"
        "asyncio.run(main())\n"
    )


def _typescript(asked: RequestedSpawn, task: str) -> str:
    files = ", ".join(f"{{ path: {_json_text(name)} }}" for name in asked.file_names)
    options = [
        *(f"{name}: {_json_text(value)}" for name, value in _options(asked, "agentId").items()),
        *(['mode: "SESSION"'] if asked.is_open else []),
        *([f"attachments: [{files}]"] if files else []),
        *(f"budget: {{ {budget} }}" for budget in _typescript_budget(asked.code_limits)),
    ]
    lines = "".join(f"  {option},\n" for option in options)
    given = f", {{\n{lines}}}" if lines else ""
    return (
        'import { connect } from "@spawnmesh/client";\n\n'
        "const mesh = connect();\n"
        f"const session = await mesh.spawn({_json_text(task)}{given});\n"
        "console.log(session.id);\n"
        "const result = await session.result();\n"
        "console.log(result.text);\n"
    )


def _curl(asked: RequestedSpawn, task: str) -> str:
    """Return the call by HTTP. The shell puts in the id of the request and the bytes of files."""
    fields = {
        "task": task,
        **_options(asked, "agent_id"),
        **({"mode": "SESSION_MODE_SESSION"} if asked.is_open else {}),
    }
    parts = ['{"request_id": "', "$(uuidgen)", '"']
    parts[-1] += "".join(f",\n  {_json_text(name)}: {_json_text(value)}" for name, value in fields.items())
    if budget := _message_fields(asked.code_limits):
        parts[-1] += f',\n  "budget": {json.dumps(budget)}'
    for number, name in enumerate(asked.file_names):
        begin = ",\n    " if number else ',\n  "attachments": [\n    '
        parts[-1] += f'{begin}{{"name": {_json_text(name)}, "data": "'
        parts += [f"$(base64 < {shlex.quote(name)} | tr -d '\\n')", '"}']
    parts[-1] += "]}" if asked.file_names else "}"
    body = "".join(_shell_text(part) if number % 2 == 0 else f'"{part}"' for number, part in enumerate(parts))
    if asked.file_names:  # An argument of a command has at most 128 KiB; `printf` is none.
        return f"printf '%s' {body} |\n  curl {_URL} \\\n  {_AUTH} --json @-\n"
    return f"curl {_URL} \\\n  {_AUTH} \\\n  --json {body}\n"


def _options(asked: RequestedSpawn, agent_name: str) -> dict[str, str]:
    given = {agent_name: asked.agent, "model": asked.model, "label": asked.label}
    return {name: value for name, value in given.items() if value}


def _budget_option(limits: LimitAmounts) -> Sequence[str]:
    """Return the option, in which a time has whole seconds."""
    seconds = -(-limits.run_time // timedelta(seconds=1))
    texts = LimitTexts.for_limits(replace(limits, run_time=timedelta(seconds=seconds))).texts()
    return [",".join(f"{name}={text}" for name, text in texts.items())] if texts else []


def _python_budget(limits: LimitAmounts) -> Sequence[str]:
    given = _amounts(limits, ("cost", "tokens", "calls", "run_time"))
    return [", ".join(f"{name}={value}" for name, value in given.items())] if given else []


def _typescript_budget(limits: LimitAmounts) -> Sequence[str]:
    given = _amounts(limits, ("cost", "tokens", "calls", "runTimeMs"), time_factor=1000)
    return [", ".join(f"{name}: {value}" for name, value in given.items())] if given else []


def _amounts(limits: LimitAmounts, names: Sequence[str], *, time_factor: int = 1) -> dict[str, str]:
    """Return the limits as literals. A cost is in units of its currency, and a time in seconds, or
    in parts of one.
    """
    values = (
        _units(limits.cost_micros),
        f"{limits.token_count}",
        f"{limits.model_call_count}",
        _units(time_factor * (limits.run_time // timedelta(microseconds=1))),
    )
    return {name: value for name, value in zip(names, values, strict=True) if value != "0"}


def _message_fields(limits: LimitAmounts) -> dict[str, str]:
    """Return the fields of the message in JSON, where large numbers are texts."""
    fields = {
        "max_cost_micros": f"{limits.cost_micros}",
        "max_token_count": f"{limits.token_count}",
        "max_model_call_count": f"{limits.model_call_count}",
        "max_run_time": f"{_units(limits.run_time // timedelta(microseconds=1))}s",
    }
    return {name: value for name, value in fields.items() if value not in ("0", "0s")}


def _units(micros: int) -> str:
    """Return millionths as a literal in whole units, exactly."""
    return f"{Decimal(micros).scaleb(-6).normalize():f}"


def _joined(arguments: Sequence[str], indent: int) -> str:
    """Return arguments in one line if there is one, else each in a line of its own."""
    if len(arguments) == 1:
        return arguments[0]
    lines = "".join(f"{' ' * indent}{argument},\n" for argument in arguments)
    return f"\n{lines}{' ' * (indent - 4)}"


def _python_text(text: str) -> str:
    return _quoted(text, lambda char: f"\\U{ord(char):08x}")


def _json_text(text: str) -> str:
    """Return a literal of JSON, which is one of TypeScript, too."""
    return _quoted(text, lambda char: json.dumps(char)[1:-1])


def _quoted(text: str, escaped: Callable[[str], str]) -> str:
    """Return the text in quotes. A character that would be unseen or obeyed is escaped."""
    shown = json.dumps(text, ensure_ascii=False)
    if harmless(shown) == shown:
        return shown
    return "".join(char if harmless(char) == char else escaped(char) for char in shown)


def _shell_text(text: str) -> str:
    quoted = shlex.quote(text)
    return quoted if quoted.startswith("'") else f"'{quoted}'"
