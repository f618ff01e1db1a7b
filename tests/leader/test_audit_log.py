"""The audit log: decisions and outcomes are found again, and the size is limited."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.balance.balancer_scene import Scene, single, wish
from tests.balance.tiny_policy import Wish

from shoal.balance.decision_record import DecisionRecord, Outcome
from shoal.balance.effects import RecordDecision
from shoal.errors import PlanError
from shoal.leader.audit_log import AuditLimits, AuditLog

__all__ = ["wish"]


@pytest.fixture
def records(wish: Wish) -> list[DecisionRecord]:
    """Ten decisions with different digests."""
    scene = Scene("s1", "s2")
    for number in range(10):
        wish.moves = {b"hot": single(f"s{1 + number % 2}")}
        scene.window()
        scene.end_moves()
        scene.look(3.0)
    return [effect.record for effect in scene.took(RecordDecision)]


def test_a_decision_is_found_by_the_start_of_its_digest(tmp_path: Path, records: list[DecisionRecord]) -> None:
    log = AuditLog(tmp_path / "audit")
    for record in records[:3]:
        log.write_decision(record, quiet=False)
    for record in records[:3]:
        assert log.find(record.digest) == record
        assert log.find(record.digest[:20]) == record
        assert log.find(record.digest[:10]) == record
    assert [file.digest for file in log.files("decision")] == [record.digest[:16] for record in records[:3]]


@pytest.mark.parametrize("digest", ["", "zzz"])
def test_an_unknown_digest_is_not_found(digest: str, tmp_path: Path, records: list[DecisionRecord]) -> None:
    log = AuditLog(tmp_path)
    log.write_decision(records[0], quiet=False)
    with pytest.raises(PlanError, match="no decision"):
        log.find(digest)


def test_an_ambiguous_digest_is_refused(tmp_path: Path, records: list[DecisionRecord]) -> None:
    log = AuditLog(tmp_path)
    first = records[0]
    log.write_decision(first, quiet=False)
    path = log.write_decision(records[1], quiet=False)
    path.rename(path.with_name(f"000000000000001-{first.digest[:4]}{'0' * 12}.decision"))
    with pytest.raises(PlanError, match="2 decisions start with"):
        log.find(first.digest[:4])


def test_the_oldest_decisions_are_removed_and_quiet_ones_displace_no_others(
    tmp_path: Path, records: list[DecisionRecord]
) -> None:
    log = AuditLog(tmp_path, AuditLimits(decisions_max=2, quiet_max=3))
    for record in records[:3]:
        log.write_decision(record, quiet=False)
    for record in records[3:]:
        log.write_decision(record, quiet=True)
    assert [file.digest for file in log.files("decision")] == [record.digest[:16] for record in records[1:3]]
    assert [file.digest for file in log.files("quiet")] == [record.digest[:16] for record in records[-3:]]


def test_bytes_are_bounded_too_but_the_newest_stays(tmp_path: Path, records: list[DecisionRecord]) -> None:
    size = AuditLog(tmp_path / "one").write_decision(records[0], quiet=False).stat().st_size
    log = AuditLog(tmp_path / "two", AuditLimits(bytes_max=3 * size + size // 2))
    for record in records:
        log.write_decision(record, quiet=False)
    assert len(log.files("decision")) == 3
    log = AuditLog(tmp_path / "three", AuditLimits(bytes_max=1))
    log.write_decision(records[0], quiet=False)
    log.write_decision(records[1], quiet=False)
    assert [file.digest for file in log.files("decision")] == [records[1].digest[:16]]


def test_outcomes_are_in_order_and_other_files_are_ignored(tmp_path: Path, records: list[DecisionRecord]) -> None:
    log = AuditLog(tmp_path)
    digest = records[0].digest
    applied, ended = Outcome(5.0, digest, "applied", {"moves": 1}), Outcome(6.5, digest, "ended")
    log.write_outcome(ended)
    log.write_outcome(applied)
    (tmp_path / "000000000000007-0123456789abcdef-ended.outcome").write_bytes(b"garbage")
    (tmp_path / "notes.txt").write_text("of somebody else")
    assert list(log.outcomes()) == [applied, ended]


def test_only_the_owner_may_read(tmp_path: Path, records: list[DecisionRecord]) -> None:
    path = AuditLog(tmp_path / "audit").write_decision(records[0], quiet=False)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700


def test_a_file_without_a_record(tmp_path: Path, records: list[DecisionRecord]) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        AuditLog.read(tmp_path / "absent")
    (tmp_path / "garbage").write_bytes(b"garbage")
    with pytest.raises(PlanError, match="not a decision record"):
        AuditLog.read(tmp_path / "garbage")
    path = AuditLog(tmp_path).write_decision(replace(records[0], version=7), quiet=False)
    with pytest.raises(PlanError, match="version 7"):
        AuditLog.read(path)


def test_an_empty_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "absent")
    assert (log.files("decision"), list(log.outcomes())) == ([], [])


def test_a_full_disk_is_not_kept_full_by_what_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        AuditLog(tmp_path)._write(tmp_path / "000000000000001-abc.quiet", b"data")
    assert list(tmp_path.iterdir()) == []
