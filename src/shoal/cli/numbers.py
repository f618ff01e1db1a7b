"""Numbers on the command line that must be above zero.

Owns what is said of those that are not: argparse would name the function that reads them.
"""

from __future__ import annotations

import argparse


def positive(text: str) -> float:
    """A number above zero. Infinity and what is no number are refused, as argparse wants it."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number above 0, not {text!r}")
    return number


def positive_int(text: str) -> int:
    """A whole number above zero."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"give a whole number above 0, not {text!r}")
    return number
