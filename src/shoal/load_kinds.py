"""The kinds of units and hosts whose load Shoal measures.

Owns the list. A package declares its kinds beside what they measure; whatever reads telemetry or load windows takes
all of them from here.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.load.kinds import Kinds

KINDS: Final = Kinds(units=(CHANNEL,), hosts=(SERVER,))
