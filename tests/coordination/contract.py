"""The coordinator's contract as tests: every implementation passes them.

An implementation adds one test module with a class that inherits `CoordinatorContract` and two fixtures:

- `store`: a running store that answers to `kill()` and `restart()` (blocking; what was acknowledged
  survives);
- `coordinator_factory`: an asynchronous function without arguments that connects one more client to it. Its
  clients are closed by the fixture; operations give up within a few seconds, and an idle watch polls every
  few seconds.
"""

from __future__ import annotations

from tests.coordination.contract_batches import BatchesContract
from tests.coordination.contract_keys import KeysContract
from tests.coordination.contract_leases import LeasesContract


class CoordinatorContract(KeysContract, LeasesContract, BatchesContract):
    """All guarantees of `shoal.coordination.interface`."""
