"""Histories of coding agents, generated: the same ones in every run.

They reproduce the structure of public session logs of coding agents. There, tools have by far most
of the tokens, models hardly write any text, and the arguments of calls that edit and write files
are a fifth of what is not output. Sizes are distributed log-normally for each tool, with the limits
that agents have: a command's output ends at 30,000 characters and a file at 2,000 lines. Each
size runs through its distribution again and again, so that all stretches of a history are alike.
"""

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp
from statistics import NormalDist
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2

_STEP = 0.6180339887  # The fractional parts of its multiples are spread evenly.
_NORMAL = NormalDist()
_USER_TURNS = 30  # A user speaks before every so many calls of the model.
_POOL = 3_000  # Lines of each kind, from which texts are drawn.
_CUT = "\n... [output truncated]"

_PROSE = (
    "the a to of in is for and this that it with on from we now need should let me check test file code"
    " function error value type path config request handler client server session state update add remove"
    " because when there are not be can will first then next run fix change"
)
_IDENTIFIERS = (
    "get set load parse build user order item token cache config index result value entry node store"
    " session request response handler service client path name count size key data list map"
)
_WORDS, _NAMES = _PROSE.split(), _IDENTIFIERS.split()
_STATEMENTS = (
    "{i}const {a} = await this.{b}.{c}({d});",
    "{i}if (!{a}.{b}) {{",
    "{i}    return {a}.{b}({c}, {{ {d}: {n} }});",
    "{i}}}",
    "{i}def {a}(self, {b}: str, {c}: int = {n}) -> dict[str, {d}]:",
    '{i}    raise ValueError(f"{a} of {{{b}}} is not {c}")',
    "{i}self._{a} = {b} or {c}({n})",
    "{i}expect({a}.{b}).toEqual({n});",
    "{i}// {w} {w2} {a} {w3}",
    "",
)
_OUTPUT = (
    "src/{a}/{b}.ts({n},{m}): error TS2345: Argument of type '{c}' is not assignable to '{d}'.",
    "tests/{a}/test_{b}.py::test_{c}_{d} PASSED [{m}%]",
    "drwxr-xr-x  {m} dev dev {n} Mar {m} 1{m}:0{m} {a}_{b}",
    "2026-03-{m}T1{m}:2{m}:33.{n}Z INFO  {a}.{b} {c}={n} {d}={m}ms",
    "  {a}/{b}/{c}.py:{n}:    {d} = {a}.{b}({c})",
    "+    {a}.{b}({c}, {d})",
)


@dataclass(frozen=True)
class Tool:
    """A tool of a coding agent: the weight of its calls, and the median sizes in bytes.

    A spread is the standard deviation of a size's logarithm.
    """

    name: str
    weight: float
    input_bytes: float
    input_spread: float
    output_bytes: float
    output_spread: float
    output_limit: int = 30_000
    is_image: bool = False


TOOLS = (
    Tool("Bash", 0.52, 100, 0.9, 340, 1.8),
    Tool("Read", 0.18, 60, 0.2, 2_900, 1.1, 80_000),
    Tool("Edit", 0.13, 900, 0.9, 700, 0.7),
    Tool("Write", 0.03, 4_000, 0.9, 90, 0.1),
    Tool("Script", 0.03, 1_800, 0.8, 500, 1.5),
    Tool("Grep", 0.07, 80, 0.4, 700, 1.3),
    Tool("TodoWrite", 0.03, 800, 0.4, 160, 0.1),
    Tool("Screenshot", 0.01, 40, 0.1, 60_000, 0.5, 200_000, is_image=True),
)
"""A `Script` is a command with a here-document, the way many agents write files."""


@dataclass
class CodingHistory:
    """A history of one agent. Iterate to get its steps: the messages that belong together."""

    seed: int = 258
    _counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._drawn = random.Random(self.seed)
        self._code_lines = [self._line(_STATEMENTS) for _ in range(_POOL)]
        self._output_lines = [self._line(_OUTPUT) for _ in range(_POOL)]

    def __iter__(self) -> Iterator[list[entry_pb2.EntryBody]]:
        number = 0
        while True:
            if number % _USER_TURNS == 0:
                yield [self._user(number)]
            yield self._step(number, is_answer=number % _USER_TURNS == _USER_TURNS - 1)
            number += 1

    def messages(self, count: int) -> list[entry_pb2.EntryBody]:
        """Return the first messages, at least this many: the last step is complete."""
        found: list[entry_pb2.EntryBody] = []
        for step in self:
            found += step
            if len(found) >= count:
                return found
        return found

    def _step(self, number: int, *, is_answer: bool) -> list[entry_pb2.EntryBody]:
        """Return what the model says, with the results of its calls."""
        blocks: list[content_pb.ContentBlock] = []
        if self._is_next("thinking", 0.3):
            blocks.append(self._thinking())
        if is_answer:
            blocks.append(_text(self._prose(self._size("answer", 900, 0.6))))
            return [_message(content_pb.ROLE_ASSISTANT, *blocks)]
        if self._is_next("says", 0.5):
            blocks.append(_text(self._prose(self._size("says", 120, 0.7))))
        results = []
        for place in range(2 if self._is_next("parallel", 0.1) else 1):
            tool = self._tool()
            call_id = f"toolu_{number:06d}{place}"
            blocks.append(_call(call_id, tool.name, self._arguments(tool)))
            results.append(self._result(call_id, tool))
        return [_message(content_pb.ROLE_ASSISTANT, *blocks), *results]

    def _user(self, number: int) -> entry_pb2.EntryBody:
        blocks = [_text(self._prose(self._size("user", 300, 1.0)))]
        if number and self._is_next("picture", 0.15):
            blocks.append(self._image(self._size("picture size", 60_000, 0.5)))
        return _message(content_pb.ROLE_USER, *blocks)

    def _arguments(self, tool: Tool) -> dict[str, Any]:
        size = self._size(f"{tool.name} input", tool.input_bytes, tool.input_spread)
        path = f"/srv/app/src/{self._name()}/{self._name()}_{self._name()}.ts"
        match tool.name:
            case "Edit":
                part = round(size * 0.45)
                return {
                    "file_path": path,
                    "old_string": self._code(part),
                    "new_string": self._code(size - part),
                }
            case "Write":
                return {"file_path": path, "content": self._code(size)}
            case "Script":
                return {"command": f"cat > {path} <<'EOF'\n{self._code(size)}\nEOF", "timeout": 120_000}
            case "Read":
                return {"file_path": path}
            case "Grep":
                return {"pattern": f"{self._name()}.*{self._name()}", "path": path}
            case "TodoWrite":
                items = [self._prose(60) for _ in range(max(1, size // 100))]
                return {"todos": [{"content": item, "status": "pending"} for item in items]}
            case _:
                return {"command": self._lines(self._output_lines, size), "description": self._prose(30)}

    def _result(self, call_id: str, tool: Tool) -> entry_pb2.EntryBody:
        size = self._size(f"{tool.name} output", tool.output_bytes, tool.output_spread)
        if tool.is_image:
            block = self._image(min(size, tool.output_limit))
        elif tool.name in ("Bash", "Script", "Grep"):
            text = self._lines(self._output_lines, min(size, tool.output_limit))
            block = _text(text + _CUT if size > tool.output_limit else text)
        else:
            block = _text(self._numbered(min(size, tool.output_limit)))
        body = _message(content_pb.ROLE_TOOL_RESULT, block)
        body.message.tool_call_id, body.message.tool_name = call_id, tool.name
        return body

    def _thinking(self) -> content_pb.ContentBlock:
        text = self._prose(self._size("thinking", 350, 0.8))
        signature = base64.b64encode(self._drawn.randbytes(len(text) // 2 + 200)).decode()
        return content_pb.ContentBlock(thinking=content_pb.Thinking(text=text, signature=signature))

    def _image(self, size: int) -> content_pb.ContentBlock:
        image = content_pb.Image(mime_type="image/png", data=self._drawn.randbytes(size))
        return content_pb.ContentBlock(image=image)

    def _tool(self) -> Tool:
        rest = self._fraction("tool")
        for tool in TOOLS:
            rest -= tool.weight
            if rest < 0:
                return tool
        return TOOLS[0]

    def _fraction(self, name: str) -> float:
        """Return the next of the fractions that are spread evenly for this name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return (count * _STEP + self.seed * 0.01) % 1

    def _is_next(self, name: str, share: float) -> bool:
        return self._fraction(name) < share

    def _size(self, name: str, median: float, spread: float) -> int:
        fraction = min(max(self._fraction(name), 0.002), 0.998)
        return max(1, round(median * exp(spread * _NORMAL.inv_cdf(fraction))))

    def _name(self) -> str:
        return self._drawn.choice(_NAMES)

    def _prose(self, size: int) -> str:
        text = " ".join(self._drawn.choices(_WORDS, k=size // 4 + 1))
        return text[:size].strip() or "ok"

    def _code(self, size: int) -> str:
        return self._lines(self._code_lines, size)

    def _numbered(self, size: int) -> str:
        """Return code with line numbers, as tools show files."""
        lines = self._code(size).split("\n")
        return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, start=1))[:size]

    def _lines(self, pool: list[str], size: int) -> str:
        lines: list[str] = []
        left = size
        while left > 0:
            lines.append(self._drawn.choice(pool))
            left -= len(lines[-1]) + 1
        return "\n".join(lines)[:size]

    def _line(self, forms: tuple[str, ...]) -> str:
        drawn = self._drawn
        a, b, c, d = (f"{self._name()}{self._name().title()}" if drawn.random() < 0.4 else self._name()
                      for _ in range(4))  # fmt: skip
        w, w2, w3 = drawn.choices(_WORDS, k=3)
        return drawn.choice(forms).format(
            i="    " * drawn.randint(0, 3), a=a, b=b, c=c, d=d, w=w, w2=w2, w3=w3,
            n=drawn.randint(0, 4_000), m=drawn.randint(1, 9),
        )  # fmt: skip


def _message(role: "content_pb.Role.ValueType", *blocks: content_pb.ContentBlock) -> entry_pb2.EntryBody:
    return entry_pb2.EntryBody(message=content_pb.Message(role=role, content=blocks))


def _text(text: str) -> content_pb.ContentBlock:
    return content_pb.ContentBlock(text=content_pb.Text(text=text or "(no output)"))


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> content_pb.ContentBlock:
    block = {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    block_json = json.dumps(block, separators=(",", ":"))
    call = content_pb.ToolCall(tool_call_id=call_id, name=name, block_json=block_json)
    return content_pb.ContentBlock(tool_call=call)
