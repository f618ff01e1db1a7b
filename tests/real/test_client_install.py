"""A client needs no more than `pip install shoal`: no numba, NumPy, pyarrow or Spark, and at most 60 MB.

The tests run in a directory that has the wheel of this checkout and the packages that it requires, and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from shoal.cluster.client_size import CLIENT_REQUIREMENTS, client_install_mb, client_packages
from shoal.cluster.doctor import WEIGHT_MAX
from shoal.extras import EXTRA_OF

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

USE = """
import asyncio, sys, shoal
from shoal import redis

async def main(url):
    async with shoal.connect(url) as bus:
        async with bus.subscribe("client.a", where="volume > 3") as messages:
            await bus.publish("client.a", b"no", attributes={"volume": 1})
            await bus.publish("client.a", b"yes", attributes={"volume": 5}, confirm=True)
            print((await anext(messages)).payload.decode())
        try:
            async with bus.subscribe("client.a", since="1m"):
                pass
        except shoal.errors.MissingExtraError as error:
            print(error)
        try:
            await bus.queue("client.q").stats()
        except shoal.errors.QueueNotFoundError as error:
            print(error)
    client = redis.from_url(url)
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("client.b")
        await client.publish("client.b", "drop-in")
        async for message in pubsub.listen():
            if message["type"] == "message":
                print(message["data"].decode())
                break
    await client.aclose()
    print(*sorted({"lupa", "numba", "numpy", "pyarrow", "pyspark", "rich"} & sys.modules.keys()))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a client."""
    folder = tmp_path_factory.mktemp("client")
    wheels, packages = folder / "wheels", folder / "site"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    for name in client_packages():
        files = [file for file in metadata.distribution(name).files or () if file.parts[0] not in ("..", "__pycache__")]
        for file in files:
            place = packages / file.parts[0]
            if not place.exists():
                place.symlink_to([Path(str(file.locate())), *Path(str(file.locate())).parents][len(file.parts) - 1])
    return packages


def run(site: Path, code: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program with these packages only."""
    start = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    command = [sys.executable, "-S", "-E", "-c", start + code, *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd="/")


def shoal(site: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return run(site, "from shoal.cli import main; sys.exit(main())", *words, given=given)


def test_channels_filters_and_the_drop_in_work_without_extras(site: Path, url: str) -> None:
    done = run(site, USE, url)
    assert done.returncode == 0, done.stderr
    filtered, since, no_queue, dropped_in, heavy = done.stdout.splitlines()
    assert no_queue.startswith("there is no queue client.q")
    assert (filtered, dropped_in, heavy) == ("yes", "drop-in", "")
    assert since.startswith("reading recorded messages needs the package")
    assert "pip install 'shoal[records]'" in since


def test_the_command_line_of_a_client_works_without_extras(site: Path, url: str) -> None:
    done = shoal(site, "pub", "client.c", "--url", url, "--json", given="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"] == 2
    done = shoal(site, "status")  # of a local cluster, which may run or not
    assert "Traceback" not in done.stderr
    assert "needs the package" not in done.stderr
    assert json.loads(shoal(site, "doctor", "--quick", "--json").stdout)["agent_rss_mb"] is None


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("up",), "server"),
        (("demo", "--seconds", "1", "--headless"), "server"),
        (("balancer",), "server"),
        (("bench", "plan"), "server"),
        (("sim", "channels", "--seeds", "1"), "server"),
        (("history", "a", "--since", "1m"), "records"),
    ],
)
def test_a_command_that_lacks_its_extra_names_it(site: Path, url: str, words: tuple[str, ...], extra: str) -> None:
    done = shoal(site, *words, *(["--url", url] if words[0] == "history" else []))
    assert done.returncode == 1
    assert f"pip install 'shoal[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_is_small() -> None:
    assert client_install_mb() <= WEIGHT_MAX["client_install_mb"]
    assert not {"numba", "numpy", "pyarrow", "pyspark", "rich"} & set(client_packages())


def test_requirements_and_extras_are_those_of_the_project() -> None:
    assert {line.split(">")[0] for line in PROJECT["dependencies"]} == set(CLIENT_REQUIREMENTS)
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= extras.keys()
    for package, extra in EXTRA_OF.items():
        if package not in ("llvmlite", "py4j"):  # requirements of the others
            assert any(line.startswith(package) for line in extras[extra]), package
