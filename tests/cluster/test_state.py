"""The state directory: what is written, who may read it, how it is found, and what clearing it
leaves alone."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from shoal.cluster import background, state
from shoal.cluster.process import ProcessId, start_ticks
from shoal.cluster.state import AgentRecord, ClusterState, ServerProcess, StateDir, find_cluster, state_dir_at
from shoal.errors import AlreadyRunningError, ClusterError, ClusterNotFoundError, VersionError

ME = ProcessId(os.getpid(), start_ticks(os.getpid()) or 0)
GONE = ProcessId(os.getpid(), 1)


def a_state(supervisor: ProcessId = ME) -> ClusterState:
    return ClusterState(
        cluster="c1",
        started_at=1.0,
        supervisor=supervisor,
        coordinator=ServerProcess("coordinator", "127.0.0.1", 7400, ME),
        servers=(ServerProcess("s1", "127.0.0.1", 7401, None),),
        agents=(AgentRecord("s1", ME),),
        passwords={"client": "secret", "agent": "other"},
        public_key="00",
    )


@pytest.fixture
def directory(tmp_path: Path) -> StateDir:
    made = StateDir(tmp_path / "deep" / "state")
    made.prepare()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_read_back_and_is_private(directory: StateDir) -> None:
    directory.write(a_state())
    assert directory.read() == a_state()
    assert mode(directory.cluster_file) == 0o600
    assert mode(directory.root) == 0o700
    assert mode(directory.logs) == 0o700


@pytest.mark.parametrize("found", [None, 1, 3])
def test_another_format_is_refused_with_advice(directory: StateDir, found: int | None) -> None:
    directory.write(a_state())
    written = msgspec.json.decode(directory.cluster_file.read_bytes())
    assert written.pop("format") == 2
    directory.cluster_file.write_bytes(msgspec.json.encode(written | ({} if found is None else {"format": found})))
    with pytest.raises(VersionError, match=f"format {found or 1}, .*reads 2.*with the version that started it"):
        directory.read()


def test_a_url_carries_role_and_password(directory: StateDir) -> None:
    assert a_state().url_for("client") == "shoal://client:secret@127.0.0.1:7400"
    with pytest.raises(ClusterError, match="use one of agent, client"):
        a_state().url_for("king")


def test_the_processes_of_a_cluster_are_those_that_run() -> None:
    assert list(a_state().processes()) == [ME, ME]


def test_a_cluster_is_found(directory: StateDir) -> None:
    directory.write(a_state())
    assert find_cluster(directory.root).cluster == "c1"


def test_no_cluster_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterNotFoundError, match="run `shoal up`, or set SHOAL_COORDINATOR to the address of another"
    ):
        find_cluster(tmp_path)


def test_a_stale_cluster_is_not_a_cluster(directory: StateDir) -> None:
    directory.write(a_state(GONE))
    with pytest.raises(ClusterNotFoundError, match="ended without cleaning up"):
        find_cluster(directory.root)


def test_garbage_in_the_file_is_reported(directory: StateDir) -> None:
    directory.cluster_file.write_text("{")
    with pytest.raises(ClusterError, match="shoal down"):
        find_cluster(directory.root)


def test_the_environment_names_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "a"))
    assert state_dir_at(None).root == tmp_path / "a"
    assert state_dir_at(tmp_path / "b").root == tmp_path / "b"
    monkeypatch.delenv("SHOAL_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir_at(None).root == tmp_path / "shoal"


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "logs").mkdir()
    mode_before = mode(tmp_path)
    with pytest.raises(ClusterError, match=r"thesis\.tex"):
        StateDir(tmp_path).prepare()
    assert mode(tmp_path) == mode_before
    assert not StateDir(tmp_path).has_remains()


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="cannot be used"):
        StateDir(tmp_path / "file").prepare()
    assert not StateDir(tmp_path / "file").has_remains()


def test_clearing_leaves_nothing_of_ours_and_everything_else(directory: StateDir) -> None:
    directory.write(a_state())
    directory.log("s1").write_text("x")
    assert directory.has_remains()
    directory.clear()
    assert not directory.root.exists()
    directory.prepare()
    (directory.root / "notes").write_text("keep")
    directory.clear()
    assert [entry.name for entry in directory.root.iterdir()] == ["notes"]


def test_the_lock_has_one_owner_who_is_named(directory: StateDir) -> None:
    assert directory.owner() is None
    lock = directory.lock()
    assert directory.owner() == ME
    with pytest.raises(AlreadyRunningError, match="shoal down"):
        directory.lock()
    directory.clear()
    lock.close()
    assert directory.owner() is None


def test_a_lock_whose_holder_has_died_is_free(directory: StateDir) -> None:
    directory.lock_file.write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    assert directory.owner() is None
    directory.lock().close()


def test_a_lock_that_a_dead_holder_has_not_let_go_of_yet_is_waited_for(directory: StateDir) -> None:
    lock = directory.lock()
    directory.lock_file.write_text(json.dumps({"pid": os.getpid(), "start_ticks": 1}))
    timer = threading.Timer(0.1, lock.close)
    timer.start()
    directory.lock().close()
    timer.join()


def test_waiting_for_a_held_lock_has_a_limit(directory: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LET_GO_TIMEOUT_S", 0.1)
    lock = directory.lock()
    directory.lock_file.write_text("{}")
    with pytest.raises(AlreadyRunningError):
        directory.lock()
    lock.close()


def test_a_stopped_cluster_with_stores_keeps_what_it_is_continued_from(directory: StateDir) -> None:
    stores = (ServerProcess("q1", "127.0.0.1", 7402, None),)
    for name in ("coordinator", "servers", "stores/q1"):
        (directory.root / name).mkdir(parents=True)
    for name in ("key", "control.sock", "failure"):
        (directory.root / name).write_bytes(b"x")
    directory.keep(msgspec.structs.replace(a_state(GONE), stores=stores))
    assert sorted(entry.name for entry in directory.root.iterdir()) == [
        "cluster.json",
        "coordinator",
        "key",
        "logs",
        "stores",
    ]
    kept = directory.resumable()
    assert kept is not None
    assert (kept.stopped, kept.stores) == (True, stores)
    with pytest.raises(ClusterNotFoundError, match="is stopped; its stores are kept"):
        find_cluster(directory.root)


@pytest.mark.parametrize("lost", ["cluster.json", "key", "coordinator"])
def test_stores_of_a_cluster_that_cannot_be_continued_are_not_deleted_without_purge(
    directory: StateDir, lost: str
) -> None:
    """`shoal up` and `shoal down` clear the directory of a cluster that cannot be continued."""
    data = directory.root / "stores" / "q1" / "data"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"messages")
    (directory.root / "coordinator").mkdir()
    directory.key_file.write_bytes(b"x")
    stopped = msgspec.structs.replace(
        a_state(GONE),
        coordinator=ServerProcess("coordinator", "127.0.0.1", 7400, None),
        agents=(),
        stores=(ServerProcess("q1", "127.0.0.1", 7402, None),),
    )
    directory.write(stopped)
    (directory.root / lost).rename(directory.root.parent / "lost")
    for act in (lambda: background.up(directory, 1), lambda: background.down(directory)):
        with pytest.raises(ClusterError, match=r"has data of stores \(q1\) of a cluster that cannot be continued"):
            act()
        assert data.read_bytes() == b"messages"
    background.down(directory, purge=True)
    assert not directory.root.exists()
