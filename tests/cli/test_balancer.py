"""`shoal balancer` and the balancer flags of `shoal up` and `shoal plan`: invalid arguments are rejected before
anything starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import cli


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SHOAL_URL", raising=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("balancer", "no cluster runs in"),
        ("balancer --metrics-port 70000", "--metrics-port is 70000"),
        ("up --policy unheard-of", "unknown policy 'unheard-of': choose one of shoal"),
        ("up --balancers -1", "--balancers is -1"),
        ("up --balancers 9", "--balancers is 9"),
        ("up --max-out-bytes-per-s 0", "--max-out-bytes-per-s is 0"),
        ("up --servers 3 --servers-min 5 --servers-max 4", "--servers-min is 5 and --servers-max 4"),
        ("plan propose --policy unheard-of", "unknown policy 'unheard-of'"),
        ("plan propose --timeout 0", "--timeout is 0"),
        ("plan propose", "no cluster runs in"),
        ("plan apply 3f9a", "no cluster runs in"),
        ("plan explain", "no cluster runs in"),
        ("plan replay 3f9a", "has no decision '3f9a'"),
    ],
)
def test_what_cannot_be_is_refused(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_elsewhere_than_beside_a_local_cluster_the_key_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_URL", "shoal://admin:x@localhost:1")
    assert cli.main(["balancer"]) == 1
    assert "--key" in capsys.readouterr().err
    assert cli.main(["balancer", "--key", "absent"]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_a_file_that_is_no_proposal_is_not_applied(capsys: pytest.CaptureFixture[str]) -> None:
    Path("next.plan").write_bytes(b"garbage")
    assert cli.main(["plan", "apply", "next.plan"]) == 1
    assert "not a proposal" in capsys.readouterr().err


def test_an_empty_audit_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "audit"]) == 0
    assert "that change something; --all lists the others too\n" in capsys.readouterr().out
    assert cli.main(["plan", "audit", "--all"]) == 0
    assert "--all" not in capsys.readouterr().out
