"""Names of errors (codes, types, exception classes) and their reasons.

A name decides if neither the status nor the text does.
"""

import re
from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason as R

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SUFFIX = re.compile(r"(?:_(?:ERROR|EXCEPTION))+$")

# Keys are upper case, with words separated by `_`, and without ERROR or EXCEPTION at the end.
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
    "BILLING": R.BILLING,
    "ACCESS_DENIED": R.AUTH,
    "INTERNAL": R.SERVER_ERROR,
    "INTERNAL_FAILURE": R.SERVER_ERROR,
    "API": R.SERVER_ERROR,
    "MODEL": R.SERVER_ERROR,
    "MODEL_STREAM": R.SERVER_ERROR,
    "SERVER": R.SERVER_ERROR,
    "INTERNAL_SERVER": R.SERVER_ERROR,
    "DEADLINE_EXCEEDED": R.TIMEOUT,
    "API_TIMEOUT": R.TIMEOUT,
    "API_CONNECTION": R.TIMEOUT,
    "CONNECTION": R.TIMEOUT,
    "MODEL_TIMEOUT": R.TIMEOUT,
    "CONNECT": R.TIMEOUT,
    "READ": R.TIMEOUT,
    "REMOTE_PROTOCOL": R.TIMEOUT,
    "NOT_FOUND": R.MODEL_NOT_FOUND,
    "RESOURCE_NOT_FOUND": R.MODEL_NOT_FOUND,
    "INVALID_REQUEST": R.FORMAT,
    "INVALID_ARGUMENT": R.FORMAT,
    "BAD_REQUEST": R.FORMAT,
    "UNPROCESSABLE_ENTITY": R.FORMAT,
    "VALIDATION": R.FORMAT,
    "UNKNOWN_PARAMETER": R.FORMAT,
    "UNSUPPORTED_VALUE": R.FORMAT,
    "INVALID_VALUE": R.FORMAT,
    "MISSING_REQUIRED_PARAMETER": R.FORMAT,
    "STRING_ABOVE_MAX_LENGTH": R.FORMAT,
    "FAILED_PRECONDITION": R.FORMAT,
    "OUT_OF_RANGE": R.FORMAT,
    "UNIMPLEMENTED": R.FORMAT,
    # Another router behind this one uses the reasons themselves.
    **{reason.value: reason for reason in R},
}


def words_of_name(name: str) -> str:
    """Split the name into words: `InvalidApiKey` becomes `Invalid Api Key`."""
    return _CAMEL.sub(" ", name)


def reason_of_name(name: str) -> R | None:
    """Return the reason of the name; None if it is unknown.

    `rate_limit_error`, `RateLimitError` and `RATE_LIMIT` are the same name.
    """
    spelled = _CAMEL.sub("_", name).upper()
    return NAMES.get(spelled) or NAMES.get(_SUFFIX.sub("", spelled))
