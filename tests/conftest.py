"""What all tests share: property tests draw the same examples in each run, so that a run that passes passes again.

None of them is judged by the time it takes: machines are shared.

To look for new ones, run with `SHOAL_EXAMPLES=random`: what fails then is replayed from Hypothesis' own database.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", untimed, derandomize=True)
settings.register_profile("random", untimed)
settings.load_profile("random" if os.environ.get("SHOAL_EXAMPLES") == "random" else "same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
