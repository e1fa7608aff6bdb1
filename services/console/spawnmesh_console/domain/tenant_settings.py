"""The settings of a tenant in words: each field with its value, or with what holds without one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from spawnmesh_console.domain.amounts import exact_size_text
from spawnmesh_console.domain.budget_limits import money
from spawnmesh_console.domain.spans_of_time import whole_span

SettingValue = bool | int | str | timedelta | None
"""The value of a field. None is for one that a message which is absent would have."""
_Word = Callable[[SettingValue], str]
_BLIND_MODELS = {
    "ROUTE_AROUND": "the model is not called",
    "STRIP": "the images are left out, with a note",
    "REFUSE": "the request is refused",
}
CALL_CLASSES = ("read", "write", "spawn", "transfer", "scan", "generate", "watch")
"""The classes of RPCs that have limits of their own."""


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting. `path` names it for `spawnmesh tenant update --set`."""

    path: str
    name: str
    text: str
    is_default: bool


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """Settings of one subject."""

    title: str
    settings: Sequence[ShownSetting]


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the contract. `default` is the text of what holds without a value.

    0, false and an empty text stand for the default, unless the field `has_zero`: then they are
    values.
    """

    path: str
    name: str
    default: str
    word: _Word
    has_zero: bool = False

    def shown(self, value: SettingValue) -> ShownSetting:
        """Return the field with its value."""
        is_set = value is not None and (self.has_zero or bool(value))
        text = self.word(value) if is_set else self.default
        return ShownSetting(self.path, self.name, text, is_default=text == self.default)


def _count(value: SettingValue) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(value: SettingValue) -> str:
    return exact_size_text(value) if isinstance(value, int) else str(value)


def _time(value: SettingValue) -> str:
    if not isinstance(value, timedelta):
        return str(value)
    if value % timedelta(minutes=1) == timedelta():
        return whole_span(value)
    return f"{value.total_seconds():,.3f}".rstrip("0").rstrip(".") + " s"


def _percent(value: SettingValue) -> str:
    return f"at {value} % of the budget"


def _money(value: SettingValue) -> str:
    return money(value) if isinstance(value, int) else str(value)


def _yes_or_no(value: SettingValue) -> str:
    return "yes" if value else "no"


def _blind_model(value: SettingValue) -> str:
    return _BLIND_MODELS.get(str(value), str(value))


_GROUPS: Mapping[str, Sequence[_Field]] = {
    "Tenant": (_Field("tenant_class", "Class in the metrics of the operator", "none", str),),
    "Sessions": (
        _Field("max_spawn_depth", "Depth of a family", "5", _count),
        _Field("max_live_child_count", "Live children of one parent", "5", _count),
        _Field("max_spawn_count", "Children that a session may spawn in its life", "no limit", _count),
        _Field("archive_after", "Ended sessions are archived after", "30 days", _time),
        _Field("delete_after", "Ended sessions are deleted after", "never", _time),
    ),
    "Runs": (
        _Field("max_queued_run_count", "Queued runs", "1,000", _count),
        _Field("max_running_run_count", "Runs at the same time", "32", _count),
        _Field("run_weight", "Weight where runners are scarce", "1", _count),
    ),
    "Agents": (
        _Field("max_agent_count", "Agents", "1,000", _count),
        _Field("max_mcp_server_count", "MCP servers of one agent", "8", _count),
    ),
    "Files": (
        _Field("attachments.enabled", "Attachments are accepted", "yes", _yes_or_no, has_zero=True),
        _Field("attachments.max_file_count", "Files in one set", "50", _count, has_zero=True),
        _Field("attachments.max_file_bytes", "Size of one file", "1 MiB", _bytes, has_zero=True),
        _Field("attachments.max_total_bytes", "Size of one set", "5 MiB", _bytes, has_zero=True),
        _Field("attachments.max_stored_bytes", "Bytes that the tenant stores", "100 GiB", _bytes),
        _Field("attachments.retention", "Files are kept for", "as long as their sessions", _time),
        _Field("attachments.download_url_lifetime", "A download URL is valid for", "none is made", _time),
        _Field("retain_on_session_keep", "Files stay after the end of kept sessions", "no", _yes_or_no),
    ),
    "Transcripts": (
        _Field("transcripts.mask_secrets", "Secrets are masked", "no", _yes_or_no),
        _Field(
            "transcripts.stub_large_tool_payloads", "Large payloads go to the blob store", "no", _yes_or_no
        ),
        _Field("transcripts.large_payload_bytes", "A payload is large from", "8,000 B", _bytes),
        _Field("transcripts.compact_at_percent", "Contexts are compacted", "never", _percent),
        _Field("transcripts.token_vocabulary", "Tokens are counted by", "o200k_base", str),
    ),
    "Model calls": (
        _Field(
            "routing.blind_model_policy",
            "Images at a model that cannot see",
            "as the operator says",
            _blind_model,
        ),
        _Field("routing.stop_after_side_effects", "No other provider after side effects", "no", _yes_or_no),
        _Field("routing.max_try_count", "Attempts at one model", "as the operator says", _count),
        _Field("routing.max_requests_per_minute", "Calls in a minute", "no limit", _count),
        _Field("routing.max_tokens_per_minute", "Tokens in a minute", "no limit", _count),
        _Field("routing.max_spend_micros_per_day", "Spending in a day (UTC)", "no limit", _money),
        _Field("routing.trace_content", "Traces have the content of calls", "no", _yes_or_no),
    ),
    "Plugins": (
        _Field("plugins.max_plugin_count", "Plugins", "32", _count),
        _Field("plugins.max_gate_count", "Gates among them", "16", _count),
    ),
}
_CALL_LIMITS = (("calls_per_second", _count), ("bytes_per_second", _bytes), ("concurrent_call_count", _count))
_CALL_LIMIT_DEFAULT = "default"
_OTHERS = "Others"


def setting_groups(values: Mapping[str, SettingValue]) -> Sequence[SettingGroup]:
    """Return all settings but the call limits, by subject. Fields that are not known here come
    last, by their paths.
    """
    groups = [
        SettingGroup(title, [one.shown(values.get(one.path)) for one in fields])
        for title, fields in _GROUPS.items()
    ]
    others = [
        ShownSetting(path, path, str(values[path]), is_default=not values[path])
        for path in values
        if path not in described_paths()
    ]
    return [*groups, SettingGroup(_OTHERS, others)] if others else groups


def call_limit_rows(values: Mapping[str, SettingValue]) -> Sequence[tuple[str, Sequence[ShownSetting]]]:
    """Return for each class of RPCs the calls a second, the bytes a second, and the calls at the
    same time.
    """
    return [
        (
            name,
            [
                _Field(path, path, _CALL_LIMIT_DEFAULT, word).shown(values.get(path))
                for path, word in _limits_of(name)
            ],
        )
        for name in CALL_CLASSES
    ]


def described_paths() -> frozenset[str]:
    """Return the paths of all fields that have words here."""
    fields = (one.path for several in _GROUPS.values() for one in several)
    limits = (path for name in CALL_CLASSES for path, _ in _limits_of(name))
    return frozenset((*fields, *limits))


def _limits_of(name: str) -> Iterable[tuple[str, _Word]]:
    return ((f"call_limits.{name}.{limit}", word) for limit, word in _CALL_LIMITS)
