"""The size of a client's installation: what `pip install shoal` adds to site-packages.

Owns the count. It reads the files of the packages that are installed here; nothing is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

MEGABYTE: Final = 1_000_000
CLIENT_REQUIREMENTS: Final = ("cryptography", "hiredis", "msgspec", "prometheus-client", "redis", "uvloop")
"""The requirements of a client, as in `pyproject.toml`."""
COMPILED_RATIO: Final = 1.5
"""Size of a compiled module relative to its source, for modules that have not been compiled yet: pip does that."""
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")


def client_install_mb() -> float:
    """The size in megabytes."""
    return round(sum(client_files()) / MEGABYTE, 1)


def client_files() -> Iterator[int]:
    """The sizes of the files that `pip install shoal` adds: this package and what it requires, without extras."""
    yield from _with_compiled(Path(__file__).parent.parent.rglob("*.py"))
    for name in client_packages():
        files = metadata.distribution(name).files or ()
        paths = [Path(str(file.locate())) for file in files if not file.name.endswith(".pyc")]
        yield from _with_compiled(path for path in paths if path.is_file())


def _with_compiled(paths: Iterable[Path]) -> Iterator[int]:
    """The sizes of files, and of the modules that Python makes of them."""
    for path in paths:
        size = path.stat().st_size
        yield size
        if path.suffix == ".py":
            compiled = Path(cache_from_source(str(path)))
            yield compiled.stat().st_size if compiled.exists() else int(size * COMPILED_RATIO)


def client_packages() -> list[str]:
    """The packages that a client needs on this machine."""
    found: set[str] = set()
    waiting = list(CLIENT_REQUIREMENTS)
    while waiting:
        name = waiting.pop()
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # for another Python or platform
            continue
        if name not in found:
            found.add(name)
            waiting += [_NAME.split(line)[0] for line in lines if "extra" not in line.partition(";")[2]]
    return sorted(found)
