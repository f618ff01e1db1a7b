"""`python -m shoal.cli`: same as the command `shoal`."""

from __future__ import annotations

import sys

from shoal.cli import main

sys.exit(main())
