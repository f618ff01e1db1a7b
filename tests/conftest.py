"""What all tests share: property tests draw the same examples in each run, so that a run that passes passes again.

To look for new ones, run with `SHOAL_EXAMPLES=random`: what fails then is replayed from Hypothesis' own database.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random")
settings.load_profile("random" if os.environ.get("SHOAL_EXAMPLES") == "random" else "same")
