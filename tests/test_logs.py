"""Logs: key=value for people, JSON for programs, on standard error, and safe against forged lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from shoal import logs


@pytest.fixture(autouse=True)
def _restore_logger() -> Iterator[None]:
    logger = logging.getLogger(logs.ROOT)
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def text() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level="info", stream=stream)
    return stream


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level="info", format="json", stream=stream)
    return stream


LOG = logs.get_log("shoal.test")


def test_text_is_one_line_of_key_value(text: io.StringIO) -> None:
    LOG.warning("server restarted", server="s2", after_s=1.5, channel=b"tile.1", note="a b", empty="")
    line = text.getvalue()
    assert line.endswith(
        ' warning shoal.test: server restarted server=s2 after_s=1.5 channel=tile.1 note="a b" empty=""\n'
    )


def test_json_is_one_object_a_line(lines: io.StringIO) -> None:
    LOG.info("moved", channel=b"tile.1", servers=("a", "b"), kind=ValueError("x"))
    entry = json.loads(lines.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "shoal.test",
        "event": "moved",
        "channel": "tile.1",
        "servers": ["a", "b"],
        "kind": "x",
    }


def test_a_field_cannot_replace_what_every_record_has(lines: io.StringIO) -> None:
    LOG.info("real", event="forged", level="forged")
    entry = json.loads(lines.getvalue())
    assert (entry["event"], entry["level"]) == ("real", "info")


def test_what_a_peer_sent_cannot_forge_a_line(text: io.StringIO) -> None:
    LOG.info("hello\nfrom", name="x\n12:00 error", raw=b"\xff\x1b[31m")
    assert text.getvalue().count("\n") == 1
    assert "\x1b" not in text.getvalue()


def test_bound_fields_are_on_every_record(text: io.StringIO) -> None:
    LOG.bind(server="s1").info("up", port=1)
    assert text.getvalue().endswith("up server=s1 port=1\n")


def test_records_below_the_level_are_not_written(text: io.StringIO) -> None:
    LOG.debug("quiet")
    assert text.getvalue() == ""


@pytest.mark.parametrize("format", ["text", "lines"])
def test_an_exception_comes_with_its_traceback(format: str, request: pytest.FixtureRequest) -> None:
    stream: io.StringIO = request.getfixturevalue(format)
    try:
        raise ValueError("broken")
    except ValueError:
        LOG.exception("failed")
    assert "ValueError: broken" in stream.getvalue()


def test_configuring_again_replaces_the_handler(text: io.StringIO) -> None:
    stream = io.StringIO()
    logs.configure(level="error", stream=stream)
    LOG.error("once")
    assert stream.getvalue().count("once") == 1
    assert text.getvalue() == ""


def test_records_of_the_standard_library_are_formatted_too(text: io.StringIO) -> None:
    logging.getLogger("shoal.other").info("plain %d", 3)
    assert text.getvalue().endswith("info shoal.other: plain 3\n")


def test_by_default_records_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="info")
    LOG.info("there")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "there" in captured.err
