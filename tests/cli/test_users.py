"""`shoal users`: arguments that are rejected before a cluster is asked."""

from __future__ import annotations

import pytest

from shoal import cli


@pytest.mark.parametrize("command", ["rotate", "revoke"])
def test_an_empty_role_does_not_mean_all_roles(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["users", command, ""]) == 1
    assert capsys.readouterr().err == "shoal: the name of the role is empty: leave it out for all roles\n"
