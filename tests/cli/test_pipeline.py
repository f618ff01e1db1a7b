"""`shoal pipeline`: its flags, and its errors where Spark cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import cli
from shoal.pipeline import session

SRC = Path(__file__).parents[2] / "src"


def test_help_shows_the_jobs_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pipeline", "--help"]) == 0
    out = capsys.readouterr().out
    assert "load windows from telemetry" in out
    assert "shoal pipeline load --once --json" in out
    assert cli.main(["pipeline", "load", "--help"]) == 0
    assert "--heap-mb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--conf", "master=local"], "write it as spark.<name>=<value>"),
        (["--conf", "spark.master"], "write it as spark.<name>=<value>"),
        (["--heap-mb", "100"], "a heap of 100 MB is too small for Spark: give it 512 MB or more"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "current_session", lambda: None)
    assert cli.main(["pipeline", "load", "--once", *words]) == 1
    assert complaint in capsys.readouterr().err


def test_without_java_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr(session, "current_session", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cli.main(["pipeline", "load", "--once"]) == 1
    assert "Spark needs Java 17 or newer" in capsys.readouterr().err


def test_nothing_but_spark_itself_imports_spark() -> None:
    program = (
        "import sys, shoal, shoal.cli.pipeline_load, shoal.cluster.doctor, shoal.cluster.local, shoal.lab.demo.run\n"
        "import shoal.pipeline.load_service, shoal.pipeline.source.offset_planner\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(SRC)})


def test_windows_of_spark_need_java_before_a_cluster_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert cli.main(["up", "--windows", "spark", "--state-dir", str(tmp_path / "state")]) == 1
    assert "openjdk-17" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_windows_from_spark_need_a_balancer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["up", "--windows", "spark", "--balancers", "0", "--state-dir", str(tmp_path / "state")]) == 1
    assert "there is no balancer" in capsys.readouterr().err
