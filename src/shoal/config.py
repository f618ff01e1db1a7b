"""Settings: their fields, their sources and the precedence of the sources.

One precedence everywhere: flags, then environment (`SHOAL_*`), then the file (TOML), then the defaults.

    flag          --state-dir DIR
    environment   SHOAL_STATE_DIR=DIR             SHOAL_LIMITS_INBOX_MESSAGES_MAX=1000
    file          state_dir = "DIR"               [limits] inbox_messages_max = 1000

A nested record is a table of the file, and its name is a prefix of keys and variables: `limits`, `balance` (for the
policies), `balancer` and `tls`.

Owns the record `Settings`, reading the three sources, and the error messages for invalid values. It never uses the
settings, and never parses the command line (which passes its flags as a mapping). Unknown keys are an error in every
source, so that a typo is never silently ignored.
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

from shoal import limits as limits_table
from shoal.balance import balancer_options as balancer_table
from shoal.balance import settings as balance_table
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.settings import BalanceSettings
from shoal.errors import ConfigError
from shoal.limits import Limits
from shoal.wire import tls as tls_table
from shoal.wire.tls import TlsSettings

ENV_PREFIX: Final = "SHOAL_"
TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "limits": Limits,
    "balance": BalanceSettings,
    "balancer": BalancerOptions,
    "tls": TlsSettings,
}
"""Settings that are nested records."""

PUBLIC: Final[Mapping[str, frozenset[str]]] = {
    "limits": limits_table.PUBLIC,
    "balance": balance_table.PUBLIC,
    "balancer": balancer_table.PUBLIC,
    "tls": tls_table.PUBLIC,
}
"""Settings of each table that users may need to change. The others are internal: they can be set, but may change
between versions.
"""

NOT_SETTINGS: Final = frozenset({"SHOAL_CONFIG", "SHOAL_NO_INSTALL", "SHOAL_URL", "SHOAL_READER"})
"""Variables with Shoal's prefix that are read elsewhere: the configuration file (here), the launcher's switch, and
logins.
"""

RENAMED: Final = {
    "limits.word_interval_s": "limits.heartbeat_interval_s",
    "limits.roll_call_s": "limits.resync_s",
}
"""Old setting names and their new names."""

DEFAULT_FILE: Final = "shoal.toml"
"""Read from the current directory if no file is given."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. To add a setting, add a field here."""

    coordinator: str = ""
    """`shoal://host:port` of the coordinator, `shoals://host:port` with TLS; empty means the local cluster of
    `state_dir`."""

    state_dir: str = ""
    """State directory of a local cluster; empty means `default_state_dir()`."""

    archive_dir: str = ""
    """Directory or URL of the archive of recorded channels; empty means no archive."""

    servers: int = 3
    """Number of servers in a local cluster."""

    local_tls: bool = False
    """Whether `shoal up` starts the local cluster with TLS."""

    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Lowest level that is logged."""

    log_format: Literal["text", "json"] = "text"
    """`text` is key=value for people, `json` is one object per line for programs."""

    metrics_port: int = 0
    """Port of the metrics page; 0 means no page. In a local cluster, the first of several: see docs/operations.md."""

    metrics_host: str = "127.0.0.1"
    """Address on which metrics pages listen. The default is the loopback interface; `0.0.0.0` is all interfaces. The
    page needs no login, and names the busiest channels."""

    limits: Limits = Limits()
    """Sizes and times, see `shoal.limits`."""

    balance: BalanceSettings = BalanceSettings()
    """Thresholds, waits and bounds of the policies, see `shoal.balance.settings`."""

    balancer: BalancerOptions = BalancerOptions()
    """Options of the balancer, see `shoal.balance.balancer_options`."""

    tls: TlsSettings = TlsSettings()
    """TLS files that the cluster's address leaves out, see `shoal.wire.tls`."""

    def validate(self) -> None:
        """Raise ConfigError if a value is invalid."""
        if self.coordinator and not self.coordinator.startswith(("shoal://", "shoals://")):
            raise ConfigError(f"coordinator is {self.coordinator!r}", do="write it as shoal://host:port")
        if not 1 <= self.servers <= 1000:
            raise ConfigError(f"servers is {self.servers}", do="give a number from 1 to 1000")
        if not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"metrics_port is {self.metrics_port}", do="use a port number, or 0 for no metrics page")
        self.limits.validate()
        self.balance.validate()
        self.balancer.validate()
        self.tls.validate()

    @property
    def state_path(self) -> Path:
        """The path of `state_dir`, with its default."""
        return Path(self.state_dir).expanduser() if self.state_dir else default_state_dir()


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and the source of each value."""

    settings: Settings
    sources: dict[str, str]
    """Key (`state_dir`, `limits.inbox_messages_max`) to source (`flag --state-dir`, `environment SHOAL_STATE_DIR`,
    `file /etc/shoal.toml`, `default`).
    """


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default state directory: the user's state directory, or a private one under the temporary
    directory.
    """
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "shoal"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local" / "state" / "shoal"
    return Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"


def setting_keys() -> tuple[str, ...]:
    """Return every setting's key; keys of tables have the table as a prefix."""
    plain = [name for name in Settings.__struct_fields__ if name not in TABLES]
    return (*plain, *(f"{table}.{name}" for table, record in TABLES.items() for name in record.__struct_fields__))


def env_name(key: str) -> str:
    """Return the environment variable of a key: `limits.linger_s` is SHOAL_LIMITS_LINGER_S."""
    return ENV_PREFIX + key.replace(".", "_").upper()


def environment_of(**tables: msgspec.Struct) -> dict[str, str]:
    """Return the variables that give a process these tables (`balance=...`): only the values that differ from the
    defaults.
    """
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

    `flags` maps keys to command-line values; None means not given. `file` is the file named on the command line;
    otherwise SHOAL_CONFIG names one, otherwise `shoal.toml` in the current directory is read if it exists. Empty
    environment variables count as not set.
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
    """Build the settings and check them; an error names the sources of the values that are not defaults."""
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
    """Return the keys of a TOML file; tables are flattened, `[limits]` into `limits.<name>`."""
    try:
        with path.open("rb") as stream:
            table = tomllib.load(stream)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cannot read the configuration file {path}: {reason}", do="check the path, or use another file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None
    flat: dict[str, object] = {}
    for name in TABLES:
        given = table.pop(name, {})
        if not isinstance(given, dict):
            raise ConfigError(
                f"{name} in {path} is not a table", do=f"write [{name}] and one setting per line below it"
            )
        flat |= {f"{name}.{key}": value for key, value in given.items()}
    flat |= table
    for key in flat:
        _require_known(key, setting_keys(), f"file {path}")
    return flat


def _read_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys set in the environment."""
    by_name = {env_name(key): key for key in setting_keys()}
    found: dict[str, str] = {}
    for name, text in environ.items():
        if not name.startswith(ENV_PREFIX) or name in NOT_SETTINGS or not text:
            continue
        _require_known(name, by_name, "the environment")
        found[by_name[name]] = text
    return found


def _require_known(key: str, known: Iterable[str], source: str) -> None:
    """Raise ConfigError for an unknown key, with its new name or the closest known key."""
    names = sorted(known, key=lambda name: ("." in name, name))
    if key in names:
        return
    renamed = RENAMED | {env_name(old): env_name(new) for old, new in RENAMED.items()}
    if key in renamed:
        raise ConfigError(f"the setting {key} in {source} was renamed", do=f"write {renamed[key]}")
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(names)}"
    raise ConfigError(f"unknown setting {key} in {source}", do=advice)


def _convert(key: str, value: object, source: str, *, strict: bool) -> object:
    """Convert a value to the type of its field. Values in a file must have the right type; text from other sources is
    parsed.
    """
    table, _, name = key.rpartition(".")
    owner = TABLES[table] if table else Settings
    wanted = {field.name: field.type for field in msgspec.structs.fields(owner)}[name]
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key} is {value!r} in {source}", do=str(error)) from None
