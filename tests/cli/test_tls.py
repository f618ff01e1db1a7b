"""`shoal tls`: certificates for servers that are laid out by hand, and the lines of their configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.redis_server import RedisServer

from shoal.cli import main
from shoal.cluster.acl import ROLES
from shoal.wire.blocking_connection import ask
from shoal.wire.dial import over_tls
from shoal.wire.tls import role_files

INIT = ("--coordinator", "127.0.0.1,c.example", "--server", "s1=127.0.0.1")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["tls", *words, "--json"])
    return status, json.loads(capsys.readouterr().out or "{}")


def test_init_makes_everything_that_the_machines_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tls"
    status, facts = run(capsys, "init", "--dir", str(folder), *INIT)
    assert status == 0
    names = {row["name"]: row for row in facts["certificates"]}
    assert names.keys() == {"authority", "coordinator", "s1", *ROLES}
    assert names["coordinator"]["hosts"][:2] == ["127.0.0.1", "c.example"]
    lines = (folder / "s1.redis.conf").read_text().splitlines()
    assert "port 0" in lines
    assert 'tls-cert-file "/etc/shoal/tls/s1.pem"' in lines
    assert "tls-auth-clients yes" in lines


def test_a_server_with_these_files_takes_the_roles_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tls"
    run(capsys, "init", "--dir", str(folder), *INIT)
    with RedisServer(tls=role_files(folder, "s1")) as server:
        dial = over_tls(role_files(folder, "client"))
        assert ask("127.0.0.1", server.port, None, None, "PING", dial=dial) == b"PONG"


def test_renew_issues_all_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tls"
    _, before = run(capsys, "init", "--dir", str(folder), *INIT, "--days", "1")
    files = {path.name: path.read_bytes() for path in folder.glob("*.pem")}
    status, after = run(capsys, "renew", "--dir", str(folder), "--days", "30")
    assert status == 0
    left = {row["name"]: row["days_left"] for row in after["certificates"]}
    assert all(29 < days <= 30 for name, days in left.items() if name != "authority")
    changed = {name for name, data in files.items() if (folder / name).read_bytes() != data}
    assert changed == files.keys() - {"ca.pem"}
    assert [row["hosts"] for row in after["certificates"]] == [row["hosts"] for row in before["certificates"]]


def test_show_fails_when_one_has_expired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cluster.authority import Authority

    folder = tmp_path / "tls"
    run(capsys, "init", "--dir", str(folder), *INIT)
    assert run(capsys, "show", "--dir", str(folder))[0] == 0
    authority = Authority.load(folder)
    assert authority is not None
    authority.issue("s1", server=True, client=False, valid_s=-1)
    assert run(capsys, "show", "--dir", str(folder))[0] == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--server", "s1"), "write it as s1=10.0.0.11"),
        (("--server", "client=10.0.0.1"), "the name of a role"),
        (("--server", "s1=1.1.1.1", "--server", "s1=1.1.1.2"), "the same id"),
        (("--server", "s1=1.1.1.1:6379"), "without ports"),
    ],
)
def test_wrong_arguments_are_explained(
    words: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tls", "init", "--dir", str(tmp_path / "tls"), "--coordinator", "c", *words]) == 1
    assert why in capsys.readouterr().err


def test_an_authority_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tls"
    run(capsys, "init", "--dir", str(folder), *INIT)
    assert main(["tls", "init", "--dir", str(folder), *INIT]) == 1
    assert "has an authority already: use `shoal tls renew`" in capsys.readouterr().err
    assert main(["tls", "renew", "--dir", str(tmp_path)]) == 1
    assert "no authority in" in capsys.readouterr().err
