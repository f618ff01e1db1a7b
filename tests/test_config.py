"""Settings: flags win over environment, environment over file, file over defaults; errors name the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import config
from shoal.errors import ConfigError
from shoal.limits import Limits


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "shoal.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_public_settings_exist() -> None:
    assert config.PUBLIC.keys() == config.TABLES.keys()
    for table, record in config.TABLES.items():
        assert set(record.__struct_fields__) >= config.PUBLIC[table]


def test_without_sources_everything_is_the_default() -> None:
    loaded = config.load(environ={})
    assert loaded.settings == config.Settings()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.sources.keys() == set(config.setting_keys())


def test_flags_win_over_environment_over_file_over_defaults() -> None:
    write('servers = 4\nstate_dir = "file"\nlog_level = "info"\n')
    environ = {"SHOAL_SERVERS": "5", "SHOAL_STATE_DIR": "environment"}
    loaded = config.load(flags={"servers": 6, "metrics_port": None}, environ=environ)
    settings = loaded.settings
    assert (settings.servers, settings.state_dir, settings.log_level, settings.metrics_port) == (
        6,
        "environment",
        "info",
        0,
    )
    assert {key: loaded.sources[key] for key in ("servers", "state_dir", "log_level", "metrics_port")} == {
        "servers": "flag --servers",
        "state_dir": "environment SHOAL_STATE_DIR",
        "log_level": "file shoal.toml",
        "metrics_port": "default",
    }


def test_limits_are_set_in_file_and_environment() -> None:
    write("[limits]\ninbox_messages_max = 10\nlinger_s = 1\n")
    loaded = config.load(environ={"SHOAL_LIMITS_LINGER_S": "2.5"})
    assert loaded.settings.limits == Limits(inbox_messages_max=10, linger_s=2.5)
    assert loaded.sources["limits.linger_s"] == "environment SHOAL_LIMITS_LINGER_S"


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_the_file_can_be_named(by: str) -> None:
    path = write("servers = 7\n", "other.toml")
    environ = {"SHOAL_CONFIG": str(path)} if by == "environment" else {}
    assert config.load(environ=environ, file=path if by == "argument" else None).settings.servers == 7


def test_a_named_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file absent\.toml: no such file"):
        config.load(environ={}, file="absent.toml")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert config.load(environ={"SHOAL_SERVERS": ""}).settings.servers == 3


@pytest.mark.parametrize(
    ("text", "environ", "flags", "says"),
    [
        ("server = 3", {}, {}, "unknown setting server in file shoal.toml: did you mean servers?"),
        ("[limits]\nlinger = 3", {}, {}, r"unknown setting limits.linger .*did you mean limits.linger_s\?"),
        ("", {"SHOAL_STATEDIR": "x"}, {}, r"in the environment: did you mean SHOAL_STATE_DIR\?"),
        (
            "[limits]\nroll_call_s = 3",
            {},
            {},
            r"limits.roll_call_s in file shoal.toml was renamed: write limits.resync_s",
        ),
        ("", {"SHOAL_LIMITS_ROLL_CALL_S": "3"}, {}, "renamed: write SHOAL_LIMITS_RESYNC_S"),
        ("", {}, {"sevrers": 1}, r"unknown setting sevrers in a flag: did you mean servers\?"),
        ("zzzzzzzz = 1", {}, {}, "known settings: archive_dir, coordinator, "),
        ("", {"SHOAL_SERVERS": "many"}, {}, "servers is 'many' in environment SHOAL_SERVERS: Expected `int`"),
        ('servers = "3"', {}, {}, "servers is '3' in file shoal.toml: Expected `int`, got `str`"),
        ("", {"SHOAL_LOG_FORMAT": "xml"}, {}, "log_format is 'xml' in environment SHOAL_LOG_FORMAT"),
        ("servers = 0", {}, {}, r"servers is 0 \(servers from file shoal.toml\): give a number from 1"),
        ('coordinator = "host:1"', {}, {}, "write it as shoal://host:port"),
        ("", {"SHOAL_METRICS_PORT": "70000"}, {}, "metrics_port is 70000"),
        (
            "[limits]\nheartbeat_interval_s = 9.0",
            {},
            {},
            r"\(limits.heartbeat_interval_s from file shoal.toml\): lower",
        ),
        ("limits = 3", {}, {}, "limits in shoal.toml is not a table"),
        ("servers = = 3", {}, {}, "the configuration file shoal.toml is not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    text: str, environ: dict[str, str], flags: dict[str, object], says: str
) -> None:
    write(text)
    with pytest.raises(ConfigError, match=says):
        config.load(environ=environ, flags=flags)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/shoal"),
        ({"HOME": "/h"}, "/h/.local/state/shoal"),
    ],
)
def test_state_goes_to_the_users_state_directory(environ: dict[str, str], path: str) -> None:
    assert config.default_state_dir(environ) == Path(path)


def test_without_a_home_state_goes_to_a_directory_per_user() -> None:
    assert config.default_state_dir({}).name.startswith("shoal-")


def test_a_state_directory_that_was_set_is_used() -> None:
    assert config.Settings(state_dir="/somewhere").state_path == Path("/somewhere")


def test_the_balancer_is_set_in_tables_of_its_own() -> None:
    write("[balance]\nhigh_ratio = 0.9\n[balancer]\nservers_max = 4\n")
    environ = {"SHOAL_BALANCE_WAIT_S": "3", "SHOAL_BALANCER_AUTO": "true", "SHOAL_BALANCER_SERVERS_MAX": "5"}
    loaded = config.load(environ=environ, flags={"balancer.policy": "slots"})
    assert (loaded.settings.balance.high_ratio, loaded.settings.balance.wait_s) == (0.9, 3.0)
    options = loaded.settings.balancer
    assert (options.policy, options.auto, options.servers_max) == ("slots", True, 5)
    assert loaded.sources["balancer.servers_max"] == "environment SHOAL_BALANCER_SERVERS_MAX"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[balance]\nlow_ratio = 0.9\n", r"low_ratio \(0.9\) is not below .*\(balance.low_ratio from file"),
        ("[balancer]\nservers_min = 20\n", "servers_min is 20 and balancer.servers_max 8"),
        ('[balancer]\npool = "a@h:1,b"\n', "balancer.pool has 'b'"),
        ('[balancer]\npool = "a@h:1,a@h:2"\n', "names a server twice"),
        ("[balancer]\nempty_s = 0\n", "balancer.empty_s is 0"),
        ("balance = 3", "balance in shoal.toml is not a table"),
    ],
)
def test_a_balancer_that_cannot_be_is_refused(text: str, says: str) -> None:
    write(text)
    with pytest.raises(ConfigError, match=says):
        config.load(environ={})
