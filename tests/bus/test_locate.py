"""How a client finds the cluster when no address is given."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.bus.location import find_url
from shoal.errors import ClusterNotFoundError


def write_cluster(directory: Path, **changes: object) -> None:
    state: dict[str, object] = {
        "cluster": "c1",
        "supervisor": {"pid": os.getpid(), "start_ticks": 1},
        "coordinator": {"id": "coordinator", "host": "127.0.0.1", "port": 7400, "process": None},
        "passwords": {"client": "secret", "admin": "other"},
    }
    directory.mkdir(exist_ok=True)
    (directory / "cluster.json").write_text(json.dumps(state | changes))


def test_the_url_of_the_environment_wins(tmp_path: Path) -> None:
    write_cluster(tmp_path)
    environ = {"SHOAL_URL": "shoal://elsewhere:1", "SHOAL_STATE_DIR": str(tmp_path)}
    assert find_url(environ=environ) == "shoal://elsewhere:1"


def test_a_directory_that_is_named_wins_over_the_environment(tmp_path: Path) -> None:
    write_cluster(tmp_path)
    found = find_url(tmp_path, environ={"SHOAL_URL": "shoal://elsewhere:1"})
    assert found == "shoal://client:secret@127.0.0.1:7400"


def test_the_state_directory_of_the_environment_is_read(tmp_path: Path) -> None:
    write_cluster(tmp_path)
    found = find_url(environ={"SHOAL_STATE_DIR": str(tmp_path)})
    assert found == "shoal://client:secret@127.0.0.1:7400"


def test_the_default_directory_is_read(tmp_path: Path) -> None:
    write_cluster(tmp_path / "shoal")
    assert find_url(environ={"XDG_STATE_HOME": str(tmp_path)}).startswith("shoal://client:")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"passwords": {}}, "has no client user"),
        ({"supervisor": {"pid": 2**22 + 1}}, "ended without cleaning up"),
        ({"stopped": True}, "is stopped; its stores are kept"),
        ({"coordinator": 17}, "cannot read"),
    ],
)
def test_a_file_that_is_no_use_says_why_and_what_to_do(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    write_cluster(tmp_path, **changes)
    with pytest.raises(ClusterNotFoundError, match=words) as caught:
        find_url(tmp_path)
    assert caught.value.do
    assert "shoal up" in caught.value.do


def test_no_cluster_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFoundError, match=r"no cluster runs.*shoal up"):
        find_url(tmp_path)
