"""Finds a Java that Spark can run on.

Owns the search and its errors. Runs only `java -version`.
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
"""The oldest version that Spark supports."""

VERSION_TIMEOUT_S: Final = 10.0
"""How long `java -version` may take."""

ADVICE: Final = "on Debian, as root: apt-get install openjdk-17-jre-headless, or set JAVA_HOME to another Java"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class Java(msgspec.Struct, frozen=True):
    """A Java that Spark runs on."""

    path: str
    version: int
    """The major version; 17 for 17.0.15."""
    text: str
    """The line of `java -version` with the version. Java may print others before it, such as JAVA_TOOL_OPTIONS."""


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark will use: that of JAVA_HOME if set, else that of PATH. `NoJavaError` if there is no suitable
    one."""
    home = environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else environ.get("PATH"))
    if path is None:
        where = f"in JAVA_HOME ({home})" if home else "in PATH, and JAVA_HOME is not set"
        raise NoJavaError(f"Spark needs Java {JAVA_MIN} or newer; there is none {where}", do=ADVICE)
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJavaError(f"{path} does not run: {error}", do=ADVICE) from error
    output = done.stderr + done.stdout
    match = _VERSION.search(output)
    if match is None:
        raise NoJavaError(f"{path} -version prints no version", do=ADVICE)
    version = int(match[1])
    if version < JAVA_MIN:
        raise NoJavaError(f"{path} is Java {version}; Spark needs {JAVA_MIN} or newer", do=ADVICE)
    return Java(path, version, next(line for line in output.splitlines() if _VERSION.search(line)))
