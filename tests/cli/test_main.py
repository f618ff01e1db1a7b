"""The command line: lazy modules, one line per error, exit statuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from shoal import cli
from shoal.cli import output
from shoal.config import Settings
from shoal.errors import ClusterError
from shoal.version import __version__


@pytest.fixture(autouse=True)
def _clean_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def greet(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """A command group with one command, `greet`; the list collects the arguments of its handler."""
    calls: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        calls.append(args)
        if args.fail == "shoal":
            raise ClusterError("nothing runs", do="start it")
        if args.fail == "interrupt":
            raise KeyboardInterrupt
        output.note("working")
        output.result(args, {"greeting": "hello", "channel": b"a", "seen": {2, 1}, "at": Path("x")}, "hello")
        return 3 if args.fail == "status" else 0

    def register(subparsers: output.Subparsers) -> None:
        parser = output.add_command(subparsers, "greet", run, "say hello", example="shoal greet")
        parser.add_argument("--fail", help="how to fail")

    module = types.ModuleType("shoal.cli.greet")
    module.register = register  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shoal.cli.greet", module)
    monkeypatch.setattr(cli, "available_commands", lambda: {"greet": ("greet", "say hello")})
    return calls


def test_bytes_that_are_not_text_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line gives them as surrogates, which no terminal and no JSON reader takes."""
    odd = b"a\xff".decode("utf-8", "surrogateescape")
    output.result(argparse.Namespace(json=False), {}, odd)
    output.result(argparse.Namespace(json=True), {"channel": odd, "names": [odd], "by": {odd: 1}}, "")
    output.note(odd)
    out, err = capsys.readouterr()
    text, facts = out.splitlines()
    assert (text, err) == ("a\\xff", "a\\xff\n")
    assert json.loads(facts) == {"channel": "a\\xff", "names": ["a\\xff"], "by": {"a\\xff": 1}}
    out.encode()


def test_counts_have_their_noun() -> None:
    assert [output.plural(count, "plan") for count in (0, 1, 2)] == ["0 plans", "1 plan", "2 plans"]


def test_a_wrong_channel_is_refused_before_input_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback of the thread that reads the input was mixed with the error."""
    assert cli.main(["pub", ""]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"shoal {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_lists_the_commands(
    words: list[str], greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "say hello" in text
    assert "examples:" in text


def test_a_command_whose_module_is_missing_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"here": ("output", "there"), "gone": ("no_such_module", "not there")}
    monkeypatch.setattr(cli, "COMMANDS", table)
    assert cli.available_commands() == {"here": ("output", "there")}


def test_every_command_has_a_line_and_a_module() -> None:
    for module, summary in cli.COMMANDS.values():
        assert module.isidentifier()
        assert summary


def test_every_command_that_is_there_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.available_commands():
        assert cli.main([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert "example" in text, f"shoal {name} --help shows no example"
        assert "--json" in text, f"shoal {name} has no --json"


def test_help_imports_no_command_and_no_heavy_package() -> None:
    program = """
import sys
from shoal.cli import COMMANDS, main
main(["--help"])
heavy = {"rich", "numpy", "numba", "pyarrow", "redis", "asyncio", "prometheus_client", "cryptography"}
heavy.update(f"shoal.cli.{module}" for module, _ in COMMANDS.values())
sys.exit(", ".join(heavy.intersection(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_handler_gets_flags_and_settings(greet: list[argparse.Namespace]) -> None:
    assert cli.main(["--state-dir", "before", "greet"]) == 0
    assert cli.main(["greet", "--state-dir", "after", "--log-level", "info"]) == 0
    assert [call.settings.state_dir for call in greet] == ["before", "after"]
    assert isinstance(greet[1].settings, Settings)
    assert greet[1].settings.log_level == "info"
    assert greet[1].setting_sources["state_dir"] == "flag --state-dir"


def test_text_goes_to_standard_output_and_notes_do_not(
    greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["greet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("hello\n", "working\n")


def test_json_is_one_object_and_nothing_else(
    greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["greet", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"greeting": "hello", "channel": "a", "seen": [1, 2], "at": "x"}


def test_the_exit_status_is_the_handlers(greet: list[argparse.Namespace]) -> None:
    assert cli.main(["greet", "--fail", "status"]) == 3


def test_an_error_is_one_line(greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["greet", "--fail", "shoal"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "shoal: nothing runs: start it\n")


@pytest.mark.parametrize("words", [["--debug", "greet"], ["greet", "--debug"]])
def test_debug_adds_the_traceback(
    words: list[str], greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--fail", "shoal"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_broken_setting_is_an_error_like_others(
    greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_SERVRS", "3")
    assert cli.main(["greet"]) == 1
    assert "did you mean SHOAL_SERVERS?" in capsys.readouterr().err


def test_an_interrupt_is_130(greet: list[argparse.Namespace]) -> None:
    assert cli.main(["greet", "--fail", "interrupt"]) == 130


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gret"], "unknown command 'gret', did you mean greet?"),
        (["greet", "--nonsense"], "unrecognized arguments: --nonsense (see shoal greet --help)"),
        (["greet", "--jsn"], "unrecognized arguments: --jsn, did you mean --json? (see shoal greet --help)"),
        (["--log-level", "loud", "greet"], "invalid choice: 'loud'"),
        (["test"], "run ./shoal test"),
        (["--debug"], "usage: shoal"),
    ],
)
def test_wrong_usage_is_2(
    words: list[str], says: str, greet: list[argparse.Namespace], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert says in captured.out + captured.err


def test_an_unknown_flag_names_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "show", "--movs"]) == 2
    assert "--movs, did you mean --moves? (see shoal plan show --help)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shell", "status", "says"),
    [
        ("doctor --quick --json >&-", None, ""),  # cron jobs and services close streams
        ("tls init 2>&-", 2, ""),
        ("doctor --quick --json > /dev/full", 1, "shoal: [Errno 28] No space left on device\n"),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(shell: str, status: int | None, says: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m shoal.cli {shell}"], capture_output=True, text=True, check=False
    )
    assert done.stderr == says
    assert status is None or done.returncode == status


def test_a_reader_that_leaves_is_no_traceback() -> None:
    program = "import sys; from shoal.cli import main; sys.exit(main(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("environ", "terminal", "wanted"),
    [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False)],
)
def test_colour_only_on_a_terminal_that_wants_it(
    environ: dict[str, str], terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert output.colour_wanted(types.SimpleNamespace(isatty=lambda: terminal)) == wanted


def test_the_console_keeps_standard_output_for_json() -> None:
    assert output.console(argparse.Namespace(json=True)).file is sys.stderr
    assert output.console(argparse.Namespace(json=False)).file is sys.stdout
