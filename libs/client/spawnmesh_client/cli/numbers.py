"""How large numbers can be that a request carries."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
