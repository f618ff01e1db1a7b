"""Load in child processes: benchmarks, soaks, experiments and the demo all run their clients this way.

    parent                                            child, `python -m MODULE`
    async with LoadProcess(name, MODULE, reports)     run_worker(orders, work)
        send(order)                --- stdin ---->        await parent.order()
        await answer(Kind, s)      <-- stdout ---         parent.tell(report)
        on(Kind, handler)          <-- stdout ---         parent.tell(report)

Orders and reports are msgspec structs with tags, one JSON object a line. Each kind of load defines its own; `Ready`,
`Go` and `Stop` are common to several. A report goes to the handler for its kind, or else to the next `answer`.

A child ends when its work is done, when its input ends, or when its parent dies: the kernel kills it then. Its
standard error is the parent's, or a log file whose last lines are quoted when the child fails.

    process.py  the parent's side
    worker.py   the child's side
"""

from shoal.lab.harness.process import LoadError, LoadProcess
from shoal.lab.harness.worker import Go, Parent, Ready, Stop, run_worker

__all__ = ["Go", "LoadError", "LoadProcess", "Parent", "Ready", "Stop", "run_worker"]
