"""`shoal agent`: its flags become the options of the agent."""

from __future__ import annotations

import pytest

from shoal import cli
from shoal.channels.agent import process
from shoal.plan.ring import ServerAddress

ADDRESS = ("--server", "s1", "--address", "10.0.0.11:6379")


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ((), ServerAddress("s1", "10.0.0.11", 6379)),
        (("--site", "oslo", "--rack", "r2"), ServerAddress("s1", "10.0.0.11", 6379, "oslo", "r2")),
    ],
)
def test_site_and_rack_are_part_of_the_address(
    flags: tuple[str, ...], address: ServerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[process.AgentOptions] = []
    monkeypatch.setattr(process, "run_agent", started.append)
    monkeypatch.setenv("SHOAL_LOG_LEVEL", "warning")
    monkeypatch.setenv("SHOAL_URL", "shoal://agent:x@10.0.0.1:7400")
    assert cli.main(["agent", *ADDRESS, *flags]) == 0
    assert [options.address for options in started] == [address]


@pytest.mark.parametrize(
    ("url", "flags", "tls"),
    [
        ("shoal://agent:x@10.0.0.1:7400", (), False),
        ("shoal://agent:x@10.0.0.1:7400", ("--tls",), True),
        ("shoals://agent:x@10.0.0.1:7400", (), True),
    ],
)
def test_the_server_is_announced_with_tls_if_the_cluster_uses_it(
    url: str, flags: tuple[str, ...], tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[process.AgentOptions] = []
    monkeypatch.setattr(process, "run_agent", started.append)
    monkeypatch.setenv("SHOAL_LOG_LEVEL", "warning")
    monkeypatch.setenv("SHOAL_URL", url)
    assert cli.main(["agent", *ADDRESS, *flags]) == 0
    assert [options.address.tls for options in started] == [tls]


@pytest.mark.parametrize("kind", ["--server", "--store"])
def test_an_empty_id_is_rejected(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", kind, "", "--address", "10.0.0.11:6379"]) == 1
    assert capsys.readouterr().err.startswith("shoal: '' is not a valid id: use 1 to 64 letters")
