"""Command-line numbers that must be above zero.

Owns their error messages; argparse's own would name the parsing function.
"""

from __future__ import annotations

import argparse


def positive(text: str) -> float:
    """Parse a number above zero. Infinity and NaN are rejected."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number above 0, not {text!r}")
    return number


def positive_int(text: str) -> int:
    """Parse a whole number above zero."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"give a whole number above 0, not {text!r}")
    return number
