"""Java: where it is, which one, and what to do if there is none that Spark can run on.

Owns the search. Starts nothing but `java -version`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

import msgspec

from shoal.errors import NoJavaError

JAVA_MIN: Final = 17
"""The oldest Java that Spark runs on."""

VERSION_TIMEOUT_S: Final = 10.0
"""How long Java may take to say its version."""

ADVICE: Final = "on Debian, as root: apt-get install openjdk-17-jre-headless, or set JAVA_HOME to another one"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class Java(msgspec.Struct, frozen=True):
    """A Java that Spark runs on."""

    path: str
    version: int
    """The first number of its version; 17 for 17.0.15."""
    text: str
    """What it says itself, its first line."""


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark will run on: of JAVA_HOME if that is set, else of PATH. `NoJavaError` if it cannot."""
    home = environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else environ.get("PATH"))
    if path is None:
        where = f"in JAVA_HOME ({home})" if home else "in PATH, and JAVA_HOME is not set"
        raise NoJavaError(f"Spark needs Java {JAVA_MIN} or newer, and there is none {where}", do=ADVICE)
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJavaError(f"{path} does not run: {error}", do=ADVICE) from error
    said = done.stderr + done.stdout
    match = _VERSION.search(said)
    if match is None:
        raise NoJavaError(f"{path} does not say which version it is", do=ADVICE)
    version = int(match[1])
    if version < JAVA_MIN:
        raise NoJavaError(f"{path} is Java {version}, and Spark needs {JAVA_MIN} or newer", do=ADVICE)
    return Java(path, version, said.splitlines()[0])
