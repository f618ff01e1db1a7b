"""Checks the settings of data servers: do the largest permitted messages fit their buffers?

Owns the two settings of Redis that matter for that, and the advice. It reads them with CONFIG GET and changes nothing.
Servers that we start have them from `servers`; users set them on their own servers.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import hiredis

from shoal.cluster.servers import BULK_BYTES_MAX, OUTPUT_BUFFER_LIMIT
from shoal.coordination.link import Address
from shoal.errors import ShoalError
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask
from shoal.wire.dial import over_tls

ADVICE: Final = (
    f"set proto-max-bulk-len {BULK_BYTES_MAX} and "
    f"client-output-buffer-limit pubsub {' '.join(map(str, OUTPUT_BUFFER_LIMIT))}"
)


class SettingsCheck(NamedTuple):
    """The result for one server: whether the settings fit, a text, and what to do if not."""

    fits: bool
    text: str
    do: str = ""


def check_settings(server: Address) -> SettingsCheck:
    """Reads the settings of a server and judges them."""
    login = (server.host, server.port, server.username, server.password)
    dial = PRODUCTION.dial if server.tls is None else over_tls(server.tls)
    try:
        bulk = ask(*login, "CONFIG", "GET", "proto-max-bulk-len", dial=dial)
        output = ask(*login, "CONFIG", "GET", "client-output-buffer-limit", dial=dial)
    except (ShoalError, hiredis.ReplyError) as error:
        return SettingsCheck(False, f"{server}: {error}", "give a user that may run CONFIG GET, such as admin")
    found = judge_settings(_value(bulk), _value(output))
    return found._replace(text=f"{server}: {found.text}")


def judge_settings(bulk: str, output: str) -> SettingsCheck:
    """Judges the values of the two settings, as CONFIG GET prints them. A limit of 0 is none."""
    words = output.split()
    hard, soft, _ = (int(word) for word in words[words.index("pubsub") + 1 :][:3])
    problems = []
    if int(bulk) > BULK_BYTES_MAX:
        problems.append(f"proto-max-bulk-len {bulk} lets a client send messages that cut subscribers off")
    if any(0 < found < wanted for found, wanted in zip((hard, soft), OUTPUT_BUFFER_LIMIT, strict=False)):
        problems.append(f"client-output-buffer-limit pubsub {hard} {soft} cuts off agents in a burst")
    if problems:
        return SettingsCheck(False, "; ".join(problems), ADVICE)
    return SettingsCheck(True, "the largest messages fit its buffers")


def _value(reply: Any) -> str:
    """The value in a reply to CONFIG GET, which is a map or a list of pairs."""
    value = next(iter(reply.values())) if isinstance(reply, dict) else reply[1]
    return value.decode() if isinstance(value, bytes) else str(value)
