"""`import shoal`: its public names, and that it loads nothing before first use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import shoal

HEAVY = ("numpy", "pyarrow", "redis", "hiredis", "cryptography", "prometheus_client", "msgspec", "uvloop")


def test_every_name_that_is_offered_is_there() -> None:
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None
    assert set(shoal.__all__) <= set(dir(shoal))


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        shoal.conect  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = f"import sys, json, shoal; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
