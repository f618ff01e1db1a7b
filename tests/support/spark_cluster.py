"""A standalone Spark cluster of one master and one worker, from the installed PySpark, and `spark-submit` to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.redis_server import free_port

from shoal.pipeline.spark.class_cache import ClassCache
from shoal.pipeline.spark.java import find_java

HOST = "127.0.0.1"
START_S_MAX = 120.0
RUN_S_MAX = 1000.0


class SparkCluster:
    """The cluster. Its driver and its worker import Python packages from `packages` first."""

    def __init__(self, directory: Path, packages: Path) -> None:
        import pyspark

        self._bin = Path(pyspark.__file__).parent / "bin"
        self._directory = directory
        cached = ClassCache.of(find_java()).option()  # Java says on standard output if a program has other classes
        given = os.environ.get("JAVA_TOOL_OPTIONS", "").split()
        java = (*(word for word in given if not word.startswith("-Dspark.")), cached, "-Xlog:cds*=off")
        self._environ = {
            **os.environ,
            "JAVA_TOOL_OPTIONS": " ".join(filter(None, java)),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(packages),
            "SPARK_LOCAL_IP": HOST,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://{HOST}:{free_port()}"

    def __enter__(self) -> SparkCluster:
        try:
            port = self.master.rpartition(":")[2]
            self._start("master.Master", "--port", port)
            self._wait_for("I have been elected leader", "master.Master")
            words = ("--cores", "2", "--memory", "1g", "--work-dir", str(self._directory / "work"))
            self._start("worker.Worker", self.master, *words)
            self._wait_for("Registering worker", "master.Master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()

    def submit(self, program: Path, words: Sequence[str], more_path: Path | None = None) -> str:
        """What a program prints that `spark-submit` runs on this cluster."""
        command = [str(self._bin / "spark-submit"), "--master", self.master, "--executor-memory", "512m"]
        command += ["--conf", "spark.ui.enabled=false", str(program), *words]
        path = os.pathsep.join([self._environ["PYTHONPATH"], *([] if more_path is None else [str(more_path)])])
        environ = {**self._environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, env=environ, cwd=self._directory, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _start(self, name: str, *words: str) -> None:
        command = [str(self._bin / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", HOST]
        with self._log(name).open("wb") as log:
            more = ["--webui-port", "0", *words]
            self._processes.append(
                subprocess.Popen([*command, *more], env=self._environ, stdout=log, stderr=subprocess.STDOUT)
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _wait_for(self, text: str, name: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        while text not in self._log(name).read_text():
            said = "\n".join(path.read_text() for path in self._directory.glob("*.log"))
            assert time.monotonic() < deadline, said
            assert all(each.poll() is None for each in self._processes), said
            time.sleep(0.05)
