"""Rows, as the connections of the pool give them."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
"""The columns of a row by name.

It stays within the module that runs the statement: functions of a store return frozen dataclasses.
A statement whose rows are many has a cursor with a row factory, and makes no `Row` at all.
"""
