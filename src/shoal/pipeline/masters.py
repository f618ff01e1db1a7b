"""Masters of Spark: where a job runs, as `--master` names it.

Owns the check of the form. Spark itself says what is wrong in a page of traces, after seconds.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.errors import PipelineError

_COUNT: Final = r"\s*[0-9]+\s*"
_FORMS: Final = (
    "local",
    rf"local\[(\s*\*\s*|{_COUNT})(,{_COUNT})?\]",  # threads, and how often a task may fail
    rf"local-cluster\[{_COUNT},{_COUNT},{_COUNT}\]",
    r"spark://\S+:\d+(,\S+:\d+)*",
    "yarn",
    r"k8s://\S+",
)


def check_master(master: str) -> None:
    """PipelineError if a master is none that Spark knows."""
    if not any(re.fullmatch(form, master) for form in _FORMS):
        raise PipelineError(
            f"{master!r} is no master of Spark",
            do="write it as local, local[N], local[*], local-cluster[W,C,MB], spark://host:port, yarn or k8s://...",
        )
