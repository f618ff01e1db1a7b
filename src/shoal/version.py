"""The version of Shoal, in one place: the build reads it from here, and so does `shoal --version`."""

from __future__ import annotations

__version__ = "0.1.0"
