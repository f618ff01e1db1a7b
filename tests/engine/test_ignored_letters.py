"""Junk on the channels to the engine: clients may send any amount of it, and the log stays short."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from shoal.engine import member_shell
from shoal.engine.member_shell import LETTERS_TOLD_S, MemberShell
from shoal.errors import ProtocolError


def test_the_log_tells_of_junk_once_a_second_with_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Mock(), SimpleNamespace(now=100.0)
    monkeypatch.setattr(member_shell, "_log", log)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: clock.now))
    shell: Any = MemberShell.__new__(MemberShell)
    shell._letters_ignored, shell._letters_told_at = 0, -LETTERS_TOLD_S
    for _ in range(5000):
        MemberShell._ignore_letter(shell, 7, ProtocolError("cannot be read"))
    clock.now += LETTERS_TOLD_S
    MemberShell._ignore_letter(shell, 7, ProtocolError("cannot be read"))
    assert [call.kwargs["count"] for call in log.warning.call_args_list] == [1, 5000]
