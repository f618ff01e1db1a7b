"""Settings: what they are, where each value came from, and which source wins.

One precedence, everywhere: flags, then environment (`SHOAL_*`), then the file (TOML), then the defaults.

    flag          --state-dir DIR
    environment   SHOAL_STATE_DIR=DIR             SHOAL_LIMITS_INBOX_MESSAGES_MAX=1000
    file          state_dir = "DIR"               [limits] inbox_messages_max = 1000

A setting that is a record of its own is a table of the file, and its name is a prefix of keys and variables: `limits`,
`balance` (the policies') and `balancer`.

Owns: the record `Settings`, reading the three sources, and the words that say what is wrong with a value.
Never touches: what the settings are used for, and the command line's parser (it hands its flags over as a
mapping). A key that no setting has is an error in every source, so that a typing mistake is never silently a
default.
"""

from __future__ import annotations

import difflib
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from shoal.balance.options import BalancerOptions
from shoal.balance.settings import BalanceSettings
from shoal.errors import ConfigError
from shoal.limits import Limits

ENV_PREFIX: Final = "SHOAL_"
TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "limits": Limits,
    "balance": BalanceSettings,
    "balancer": BalancerOptions,
}
"""Settings that are records of their own."""

NOT_SETTINGS: Final = frozenset({"SHOAL_CONFIG", "SHOAL_NO_INSTALL", "SHOAL_URL", "SHOAL_READER"})
"""Variables with our prefix that are read elsewhere: the file to read (here), the front door's, and log-ins."""

RENAMED: Final = {
    "limits.word_interval_s": "limits.heartbeat_interval_s",
    "limits.roll_call_s": "limits.resync_s",
}
"""Settings of earlier versions, with their names of today."""

DEFAULT_FILE: Final = "shoal.toml"
"""Read from the current directory when no file is named."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a user can set. A new setting is a new field here, and nothing else."""

    coordinator: str = ""
    """`shoal://host:port` of the coordinator; empty means the local cluster of `state_dir`."""

    state_dir: str = ""
    """Where a local cluster keeps its state; empty means `default_state_dir()`."""

    archive_dir: str = ""
    """Where the archive of recorded channels lies; empty means that there is none."""

    servers: int = 3
    """How many servers a local cluster has."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """The least important record that is still written."""

    log_format: Literal["text", "json"] = "text"
    """`text` is key=value for people, `json` is one object a line for machines."""

    metrics_port: int = 0
    """Port of the metrics page on the loopback interface; 0 means no page."""

    limits: Limits = Limits()
    """Sizes and times, see `shoal.limits`."""

    balance: BalanceSettings = BalanceSettings()
    """Thresholds, waits and bounds of policies, see `shoal.balance.settings`."""

    balancer: BalancerOptions = BalancerOptions()
    """The balancer's own, see `shoal.balance.options`."""

    def validate(self) -> None:
        """Raise ConfigError if a value cannot be."""
        if self.coordinator and not self.coordinator.startswith("shoal://"):
            raise ConfigError(f"coordinator is {self.coordinator!r}", do="write it as shoal://host:port")
        if not 1 <= self.servers <= 1000:
            raise ConfigError(f"servers is {self.servers}", do="give a number from 1 to 1000")
        if not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"metrics_port is {self.metrics_port}", do="give a port, or 0 for none")
        self.limits.validate()
        self.balance.validate()
        self.balancer.validate()

    @property
    def state_path(self) -> Path:
        """The directory of `state_dir`, with its default."""
        return Path(self.state_dir).expanduser() if self.state_dir else default_state_dir()


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and for every key of them the place that its value came from."""

    settings: Settings
    sources: dict[str, str]
    """Key (`state_dir`, `limits.inbox_messages_max`) to source (`flag --state-dir`, `environment
    SHOAL_STATE_DIR`, `file /etc/shoal.toml`, `default`)."""


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where state goes when nobody said: the user's state directory, or one of their own under the temporary
    one."""
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "shoal"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local" / "state" / "shoal"
    return Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"


def setting_keys() -> tuple[str, ...]:
    """Every key that can be set, those of tables with their prefix."""
    plain = [name for name in Settings.__struct_fields__ if name not in TABLES]
    return (*plain, *(f"{table}.{name}" for table, record in TABLES.items() for name in record.__struct_fields__))


def env_name(key: str) -> str:
    """The variable of a key: `limits.linger_s` is SHOAL_LIMITS_LINGER_S."""
    return ENV_PREFIX + key.replace(".", "_").upper()


def environment_of(**tables: msgspec.Struct) -> dict[str, str]:
    """The variables that give a process these tables (`balance=...`): those settings that differ from the defaults."""
    return {
        env_name(f"{table}.{name}"): str(getattr(record, name))
        for table, record in tables.items()
        for name in record.__struct_fields__
        if getattr(record, name) != getattr(TABLES[table](), name)
    }


def load(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    file: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Read all sources and return the settings with the source of each.

    `flags` maps keys to the values that were given on the command line; None means not given. `file` is the
    file that the command line named; without it SHOAL_CONFIG names one, and without that `shoal.toml` in the
    current directory is read if it is there. An empty variable of the environment counts as not set.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(setting_keys(), "default")
    named = file if file is not None else environ.get("SHOAL_CONFIG") or None
    path = Path(named) if named is not None else Path(DEFAULT_FILE)
    if named is not None or path.is_file():
        for key, value in _read_file(path).items():
            values[key], sources[key] = _convert(key, value, f"file {path}", strict=True), f"file {path}"
    for key, text in _read_environ(environ).items():
        source = f"environment {env_name(key)}"
        values[key], sources[key] = _convert(key, text, source, strict=False), source
    for key, value in (flags or {}).items():
        if value is None:
            continue
        _require_known(key, setting_keys(), "a flag")
        source = f"flag --{key.replace('_', '-')}"
        values[key], sources[key] = _convert(key, value, source, strict=False), source
    return Loaded(_build(values, sources), sources)


def _build(values: Mapping[str, object], sources: Mapping[str, str]) -> Settings:
    """Put the values together and check them; an error names the sources that were not defaults."""
    plain: dict[str, Any] = {}
    records: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        (records[table] if table else plain)[name] = value
    plain |= {table: TABLES[table](**given) for table, given in records.items()}
    settings = Settings(**plain)
    try:
        settings.validate()
    except ConfigError as error:
        concerned = [f"{key} from {sources[key]}" for key in values if key.split(".")[-1] in error.what]
        if not concerned:
            raise
        raise ConfigError(f"{error.what} ({', '.join(concerned)})", do=error.do) from None
    return settings


def _read_file(path: Path) -> dict[str, object]:
    """The keys of a TOML file, with `[limits]` flattened into `limits.<name>`, and so all tables."""
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot read the configuration file {path}: {reason}", do="name another one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None
    flat: dict[str, object] = {}
    for name in TABLES:
        given = table.pop(name, {})
        if not isinstance(given, dict):
            raise ConfigError(f"{name} in {path} is not a table", do=f"write [{name}] and one setting a line below it")
        flat |= {f"{name}.{key}": value for key, value in given.items()}
    flat |= table
    for key in flat:
        _require_known(key, setting_keys(), f"file {path}")
    return flat


def _read_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The keys that the environment sets."""
    by_name = {env_name(key): key for key in setting_keys()}
    found: dict[str, str] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in NOT_SETTINGS or not text:
            continue
        _require_known(name, by_name, "the environment")
        found[by_name[name]] = text
    return found


def _require_known(key: str, known: Iterable[str], source: str) -> None:
    """Raise ConfigError with the new or the nearest known key if this one is not known."""
    names = sorted(known, key=lambda name: ("." in name, name))
    if key in names:
        return
    renamed = RENAMED | {env_name(old): env_name(new) for old, new in RENAMED.items()}
    if key in renamed:
        raise ConfigError(f"the setting {key} in {source} has a new name", do=f"write {renamed[key]}")
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
    raise ConfigError(f"unknown setting {key} in {source}", do=advice)


def _convert(key: str, value: object, source: str, *, strict: bool) -> object:
    """The value as the type of its field. A file must have the right type; text from elsewhere is read as
    it."""
    table, _, name = key.rpartition(".")
    owner = TABLES[table] if table else Settings
    wanted = {field.name: field.type for field in msgspec.structs.fields(owner)}[name]
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key} is {value!r} in {source}", do=str(error)) from None
