"""Error numbers that providers document, and their reasons.

A number decides only if the words around it do not: some providers reuse a number for several
causes.
"""

from typing import Final

from spawnmesh_model_router.domain.reasons import FailoverReason as R

# Of one provider's errors: `"code": "1210"`, `error 1305`, `(2013)`, `3040: …`
NUMBER: Final = r"(?:code[\"']?:\s*[\"']?|error\s+|\(|^)"

VENDOR_CODES: Final[dict[str, dict[R, str]]] = {
    "zai": {
        R.AUTH: "1110|1111|1220",
        R.AUTH_PERMANENT: "1112|1121",
        R.FORMAT: "121[02345]",
        R.MODEL_NOT_FOUND: "1211|1221|1222",
        R.NO_FAILOVER: "1300|1301",
        R.CONTEXT_OVERFLOW: "1261",
        R.SERVER_ERROR: "1120|1200|1230",
        R.TIMEOUT: "1234",
    },
    "minimax": {
        R.RATE_LIMIT: "1002|1039|1041|2045|2056",
        R.AUTH: "1004|2049",
        R.BILLING: "1008",
        R.NO_FAILOVER: "1026|1027",
        R.FORMAT: "2013",
        R.TIMEOUT: "1001",
        R.SERVER_ERROR: "1000|1024|1033",
    },
    "cloudflare": {
        R.RATE_LIMIT: "3036|4006",
        R.OVERLOADED: "3040",
        R.MODEL_NOT_FOUND: "3042|5007",
        R.FORMAT: "3003|5004|5005",
        R.AUTH: "3041|5016|5018",
        R.TIMEOUT: "3007|3008",
    },
}
