"""Structured logs on the standard library: an event and its fields, for people or for programs.

    text   12:00:01.250 warning shoal.channels.agent.process: server restarted server=s2 after_s=1.5
    json   {"time":"2026-01-31T12:00:01.250000+00:00","level":"warning","logger":"shoal.channels.agent.process",...}

Owns the two formats, the handler on standard error, and `Log`, which all Shoal modules use. It never writes to standard
output (results go there) and never touches the root logger (an application that uses Shoal as a library configures its
own; without `configure()` the standard library's rules apply). Values are escaped, so that data from a peer cannot
forge a log line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

ROOT: Final = "shoal"
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_FIELDS: Final = "shoal_fields"


class Log:
    """A logger for an event and its fields: `log.warning("server restarted", server="s2", after_s=1.5)`.

    A record below the level costs one comparison. `bind` returns a log that adds fields to every record.
    """

    __slots__ = ("_bound", "_logger")

    def __init__(self, logger: logging.Logger, bound: Mapping[str, object] | None = None) -> None:
        self._logger = logger
        self._bound = dict(bound or {})

    def bind(self, **fields: object) -> Log:
        """Return a log with these fields on every record."""
        return Log(self._logger, {**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """Log details for debugging."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log normal operation."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log a problem that was handled."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Log a problem that needs action."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """Like `error`, with the traceback of the current exception."""
        self._log(logging.ERROR, event, fields, exc_info=True)

    def _log(self, level: int, event: str, fields: Mapping[str, object], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            extra = {_FIELDS: {**self._bound, **fields}}
            self._logger.log(level, "%s", event, exc_info=exc_info, extra=extra, stacklevel=3)


def get_log(name: str) -> Log:
    """Return the log of a module: `log = get_log(__name__)`."""
    return Log(logging.getLogger(name))


def configure(
    *, level: str = "warning", format: Literal["text", "json"] = "text", stream: TextIO | None = None
) -> None:
    """Write Shoal's log records to standard error (or `stream`), and only there. May be called again."""
    logger = logging.getLogger(ROOT)
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    logger.propagate = False


class TextFormatter(logging.Formatter):
    """One line per record: time, level, logger, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on separate lines."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        words = [f"{time} {record.levelname.lower()} {record.name}: {_plain(record.getMessage())}"]
        words += [f"{key}={_word(value)}" for key, value in _fields(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per record. Fields are on the top level and cannot replace time, level, logger and event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object on one line."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry = {**_fields(record), **entry}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, separators=(",", ":"), default=_text)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record; empty for a record that did not come through `Log`."""
    fields: dict[str, object] = getattr(record, _FIELDS, {})
    return fields


def _text(value: object) -> str:
    """Convert a value to text; bytes (mostly channel names) are decoded."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _plain(text: str) -> str:
    """Escape characters that could start a new line or control a terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _word(value: object) -> str:
    """Format a value as one word: quoted if it has spaces, quotes, equals signs or unprintable characters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _text(value)
    if text and text.isprintable() and not any(char in text for char in ' "='):
        return text
    return json.dumps(text)
