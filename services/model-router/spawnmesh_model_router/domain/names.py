"""Error names (codes, types, exception classes) and the reason they mean when neither status nor text has decided."""

import re
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason as R

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SUFFIX = re.compile(r"_(?:ERROR|EXCEPTION)$")

# Keys are upper case, words split by `_`, without a trailing ERROR or EXCEPTION.
NAMES: Final[dict[str, R]] = {
    "TOO_MANY_REQUESTS": R.RATE_LIMIT,
    "RESOURCE_EXHAUSTED": R.RATE_LIMIT,
    "QUOTA_EXCEEDED": R.RATE_LIMIT,
    "UNAVAILABLE": R.OVERLOADED,
    "SERVICE_UNAVAILABLE": R.OVERLOADED,
    "INSUFFICIENT_QUOTA": R.BILLING,
    "DEACTIVATED_WORKSPACE": R.AUTH_PERMANENT,
    "AUTHENTICATION": R.AUTH,
    "UNAUTHENTICATED": R.AUTH,
    "PERMISSION": R.AUTH,
    "PERMISSION_DENIED": R.AUTH,
    "INTERNAL": R.SERVER_ERROR,
    "SERVER": R.SERVER_ERROR,
    "INTERNAL_SERVER": R.SERVER_ERROR,
    "INTERNAL_SERVER_EXCEPTION": R.SERVER_ERROR,
    "DEADLINE_EXCEEDED": R.TIMEOUT,
    "API_TIMEOUT": R.TIMEOUT,
    "API_CONNECTION": R.TIMEOUT,
    "CONNECT": R.TIMEOUT,
    "READ": R.TIMEOUT,
    "REMOTE_PROTOCOL": R.TIMEOUT,
    "NOT_FOUND": R.MODEL_NOT_FOUND,
    "INVALID_REQUEST": R.FORMAT,
    "INVALID_ARGUMENT": R.FORMAT,
    "BAD_REQUEST": R.FORMAT,
    "UNPROCESSABLE_ENTITY": R.FORMAT,
    "VALIDATION": R.FORMAT,
    "UNKNOWN_PARAMETER": R.FORMAT,
    # A router behind this one spells the reasons as they are.
    **{reason.value: reason for reason in R},
}


def reason_of_name(name: str) -> R | None:
    """The reason that `name` stands for: `rate_limit_error`, `RateLimitError` and `RATE_LIMIT` are one name."""
    spelled = _CAMEL.sub("_", name).upper()
    return NAMES.get(spelled) or NAMES.get(_SUFFIX.sub("", spelled))
