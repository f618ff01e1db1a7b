"""`shoal doctor`: every finding has a level, and every problem has advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer

from shoal.cli import main
from shoal.cluster import doctor
from shoal.cluster.authority import Authority
from shoal.cluster.doctor import Finding, examine
from shoal.cluster.server_settings import judge_settings
from shoal.cluster.servers import ServerProgram
from shoal.cluster.state import StateDir
from shoal.coordination.link import Address


def by_check(directory: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(StateDir(directory))}


def test_every_check_has_a_level_and_trouble_has_an_advice(tmp_path: Path) -> None:
    findings = by_check(tmp_path / "none")
    expected = {
        "python",
        "environment",
        "server",
        "java",
        "spark",
        "cores",
        "memory",
        "open files",
        "ports",
        "cluster",
    }
    assert findings.keys() == expected
    assert all(finding.do for finding in findings.values() if finding.level != "ok")


def test_no_server_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_programs", list)
    assert by_check(tmp_path)["server"].level == "fail"


@pytest.mark.parametrize(
    ("version", "safe", "level", "advice"),
    [
        ((7, 2, 11), True, "ok", ""),
        ((7, 2, 1), False, "warn", "the reason"),
        ((6, 2, 20), True, "warn", "before 7.0"),
        ((6, 0, 1), False, "fail", "older than 6.2"),
    ],
)
def test_a_server_is_judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int, int],
    safe: bool,
    level: str,
    advice: str,
) -> None:
    program = ServerProgram("/x/redis-server", "redis", version, None, safe, "the reason")
    monkeypatch.setattr(doctor, "find_programs", lambda: [program])
    finding = by_check(tmp_path)["server"]
    assert finding.level == level
    assert advice in finding.do


def test_remains_of_a_cluster_are_found(tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "state")
    directory.prepare()
    directory.lock().close()
    directory.lock_file.write_text("{}")
    finding = by_check(directory.root)["cluster"]
    assert (finding.level, finding.do) == ("warn", "run `shoal down`")
    directory.cluster_file.write_text("garbage")
    assert by_check(directory.root)["cluster"].level == "fail"


def test_the_command_prints_lines_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--quick", "--state-dir", str(tmp_path / "none")])
    text = capsys.readouterr().out
    assert "python" in text
    assert main(["doctor", "--json", "--state-dir", str(tmp_path / "none")]) == status
    facts = json.loads(capsys.readouterr().out)
    assert facts["healthy"] == (status == 0)
    for name in ("agent_rss_mb", "agent_pss_mb", "client_install_mb"):  # an idle agent, a client
        assert 0 < facts[name] <= doctor.WEIGHT_MAX[name]
    for name in ("agent_start_cold_s", "agent_start_warm_s"):  # a busy machine takes longer than allowed
        assert facts[name] > 0
    assert not (tmp_path / "none").exists()


def test_up_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--servers", "0", "--state-dir", str(tmp_path / "none")]) == 1
    assert "from 1 to 1000" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("valid_s", "level"), [(-1, "fail"), (3 * 86400, "warn"), (60 * 86400, "ok")], ids=["expired", "soon", "valid"]
)
def test_configured_certificates_are_checked(
    valid_s: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Authority.create(tmp_path, "test").issue("client", server=False, client=True, valid_s=valid_s)
    monkeypatch.setenv("SHOAL_TLS_CERT", str(path))
    found = by_check(tmp_path / "none")["tls"]
    assert found.level == level
    assert str(path) in found.text
    assert found.do == ("" if level == "ok" else "run `shoal tls renew`")


def test_a_missing_certificate_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TLS_CA", str(tmp_path / "missing.pem"))
    assert by_check(tmp_path / "none")["tls"].level == "fail"


# Settings of servers


@pytest.mark.parametrize(
    ("bulk", "pubsub", "fits", "named"),
    [
        ("33554432", "268435456 134217728 60", True, "fit"),
        ("1000000", "0 0 0", True, "fit"),
        ("536870912", "268435456 134217728 60", False, "proto-max-bulk-len 536870912"),
        ("33554432", "33554432 8388608 60", False, "pubsub 33554432 8388608"),
        ("33554432", "268435456 8388608 60", False, "pubsub 268435456 8388608"),
    ],
)
def test_the_settings_of_a_server_are_judged(bulk: str, pubsub: str, fits: bool, named: str) -> None:
    output = f"normal 0 0 0 slave 268435456 67108864 60 pubsub {pubsub}"
    found = judge_settings(bulk, output)
    assert found.fits is fits
    assert named in found.text
    assert fits or "client-output-buffer-limit pubsub 268435456 134217728 60" in found.do


def test_a_server_of_the_user_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with RedisServer() as server:
        command = [
            "--state-dir",
            str(tmp_path / "none"),
            "doctor",
            "--quick",
            "--server",
            f"{server.host}:{server.port}",
            "--json",
        ]
        main(command)
    findings = json.loads(capsys.readouterr().out)["findings"]
    (settings,) = (finding for finding in findings if finding["check"] == "settings")
    assert settings["level"] == "warn"
    assert "proto-max-bulk-len" in settings["text"]
    assert "client-output-buffer-limit" in settings["do"]


def test_a_server_that_does_not_answer_is_a_finding(tmp_path: Path) -> None:
    findings = examine(StateDir(tmp_path), [Address("127.0.0.1", 1, None, None)])
    assert [finding.level for finding in findings if finding.check == "settings"] == ["warn"]
