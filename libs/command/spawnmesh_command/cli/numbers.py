"""Limits of the integers in requests."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
