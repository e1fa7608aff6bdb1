"""Sizes, counts and shares, in words and as bars."""

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_LEAST_COST_MICROS = 100
_LEAST_PERCENT = 1.0
"""The least height or width of a bar of something: a lower one cannot be seen."""


def size_text(count: int) -> str:
    """Return a number of bytes with three digits at most, such as `1.2 MiB`."""
    size, unit = float(count), 0
    while size >= _STEP and unit < len(_SIZES) - 1:
        size, unit = size / _STEP, unit + 1
    return f"{size:.0f} {_SIZES[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {_SIZES[unit]}"


def exact_size_text(count: int) -> str:
    """Return a number of bytes without a loss, such as `5 MiB` or `1,500,000 B`."""
    size, unit = count, 0
    while size and size % _STEP == 0 and unit < len(_SIZES) - 1:
        size, unit = size // _STEP, unit + 1
    return f"{size:,} {_SIZES[unit]}"


def counted(number: int, one: str, several: str) -> str:
    """Return the number with its noun, such as `1 entry` or `1,200 entries`."""
    return f"{number:,} {one if number == 1 else several}"


def percent_text(part: int, whole: int) -> str:
    """Return the share of a whole in percent, rounded down; a dash for none of it."""
    if part <= 0 or whole <= 0:
        return "–"
    percent = 100 * part // whole
    return f"{percent} %" if percent else "< 1 %"


def aligned_cost(micros: int) -> str:
    """Return a cost for a column: with four decimals, so that points stand below each other."""
    if 0 < micros < _LEAST_COST_MICROS:
        return "< 0.0001"
    return f"{micros / 1_000_000:,.4f}"


def bar_percent(part: int, whole: int) -> float:
    """Return the part in percent, so much that it can be seen, and at most 100."""
    if part <= 0 or whole <= 0:
        return 0.0
    return round(min(max(100 * part / whole, _LEAST_PERCENT), 100.0), 2)
