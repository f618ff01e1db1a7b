"""The documentation: links resolve, programs compile, commands parse, and generated parts are up to date.

Programs run in `tests/real/test_pages.py` and `tests/pipeline/test_pages.py`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from docs import tables

from shoal import cli, config, rules
from shoal.channels import diagrams, states
from shoal.channels.client import receiver as receiving
from shoal.lab.sim.protocols import PROTOCOLS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
INLINE_COMMAND = re.compile(r"`(?:\./)?shoal ([a-z]+)")


class Block(NamedTuple):
    page: Path
    language: str
    text: str


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, text)
        for page in PAGES
        for language, text in FENCE.findall(read(page))
        if language in languages
    ]


def label(value: object) -> str:
    if isinstance(value, Block):
        return f"{value.page.name}:{read(value.page).count(chr(10), 0, read(value.page).index(value.text)) + 1}"
    return value.name if isinstance(value, Path) else str(value)


def anchors(page: Path) -> set[str]:
    """Return the anchors that git hosts generate for headings."""
    titles = HEADING.findall(FENCE.sub("", read(page)))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", read(page))):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}; there is no such heading"


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(read(ROOT / "README.md"))}
    assert {f"docs/{page.name}" for page in PAGES if page.parent.name == "docs"} <= linked


@pytest.mark.parametrize("block", blocks("python"), ids=label)
def test_python_compiles(block: Block) -> None:
    compile(block.text, label(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `shoal` command in a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    del words[0]
                if words and words[0] in ("shoal", "./shoal"):
                    yield words[1:]
                words = []
            else:
                words.append(word)


SHELL_COMMANDS = [(block, words) for block in blocks("sh", "") for words in commands(block.text)]


@pytest.mark.parametrize(
    ("block", "words"), SHELL_COMMANDS, ids=[f"{label(b)} {' '.join(w)}" for b, w in SHELL_COMMANDS]
)
def test_commands_are_what_the_command_line_takes(block: Block, words: list[str]) -> None:
    if words[0] in cli.FRONT_DOOR_COMMANDS:
        return
    assert words[0] in cli.available_commands()
    assert callable(cli._parse(words).run)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_commands_in_the_text_exist(page: Path) -> None:
    known = {*cli.available_commands(), *cli.FRONT_DOOR_COMMANDS}
    assert set(INLINE_COMMAND.findall(FENCE.sub("", read(page)))) <= known


@pytest.mark.parametrize("name", diagrams.PAGES)
def test_state_diagrams_are_up_to_date(name: str) -> None:
    page = read(ROOT / "docs" / name)
    assert page == diagrams.refresh(name, page), "run: python -m shoal.channels.diagrams docs/protocol-*.md"


def test_a_diagram_shows_every_state_and_every_transition() -> None:
    drawn = diagrams.render(states.SITE)
    assert all(site.value in drawn for site in states.SiteState)
    for (before, event), after in states.SITE.items():
        assert re.search(rf"{before.value} --> {after.value}: .*{event}", drawn)


def test_a_page_without_marks_for_a_diagram_is_rejected() -> None:
    with pytest.raises(ValueError, match="no marks for link"):
        diagrams.refresh("protocol-channels.md", "# nothing here\n")


def test_tables_of_settings_and_errors_are_up_to_date() -> None:
    page = read(tables.PAGE)
    assert page == tables.refresh(page), "run: python docs/tables.py"


def test_the_table_of_settings_has_every_public_setting_and_no_internal_one() -> None:
    listed = re.findall(r"^\| `([\w.]+)` \|", tables.settings_table(), re.MULTILINE)
    tabled = [key for key in config.setting_keys() if "." in key]
    assert listed == [key for key in tabled if key.split(".")[1] in config.PUBLIC[key.split(".")[0]]]
    assert len(listed) < len(tabled) / 3


def test_reasons_of_gaps_are_those_of_the_code() -> None:
    source = Path(receiving.__file__).read_text(encoding="utf-8")
    section = read(tables.PAGE).split("| reason |")[1].split("\n\n")[0]
    reasons = [line.split("|")[1].strip() for line in section.splitlines()[2:]]
    assert len(reasons) >= 4
    for reason in reasons:
        assert reason.replace("s2", "{server}") in source


@pytest.mark.parametrize(
    ("protocol", "page", "heading"),
    [
        ("channels", "simulator.md", "## Breaking a rule on purpose"),
        ("moves", "protocol-moves.md", "## What would break it"),
        ("recording", "simulator.md", "## The scenario `recording`"),
        ("balancer", "simulator.md", "## The scenario `balancer`"),
        ("queue", "protocol-queues.md", "## What would break it"),
        ("engine", "protocol-engine.md", "## What would break it"),
    ],
)
def test_every_break_is_described(protocol: str, page: str, heading: str) -> None:
    section = read(ROOT / "docs" / page).split(heading)[1].split("| break |")[1].split("\n\n")[0]
    described = {name.replace("-", "_") for name in re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE)}
    others = {name for other in PROTOCOLS.values() if other.name != protocol for name in other.breaks}
    assert described - others == set(PROTOCOLS[protocol].breaks) - others


def test_the_simulator_page_states_each_rule_as_the_code_declares_it() -> None:
    head = "| break | rule that is switched off | found as |\n| --- | --- | --- |\n"
    tables = [part.split("\n\n")[0] for part in read(ROOT / "docs" / "simulator.md").split(head)[1:]]
    stated = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| ", "\n".join(tables), re.MULTILINE))
    for protocol in PROTOCOLS.values():
        assert protocol.breaks, "its rules have been imported"
    assert len(stated) > 30
    assert {name: rules.declared()[name] for name in stated} == stated


def test_the_sample_of_a_coordinator_says_where_its_data_is() -> None:
    sample = read(ROOT / "docs" / "operations.md").split("aclfile /etc/shoal/coordinator.acl")[1].split("```")[0]
    assert "\ndir /" in sample


def test_the_operations_page_lists_every_setting() -> None:
    section = read(ROOT / "docs" / "operations.md").split("| key | environment |")[1].split("\n\n")[0]
    keys = re.findall(r"^\| `([\w.]+)` \| `(\w+)`", section, re.MULTILINE)
    plain = [key for key in config.setting_keys() if "." not in key]
    assert keys == [(key, config.env_name(key)) for key in (*plain, *(f"{table}.NAME" for table in config.TABLES))]
