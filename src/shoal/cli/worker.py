"""`shoal worker MODULE:APP`: runs the workers of an application until SIGTERM or SIGINT.

Owns importing the application and the report at the end. The workers are in `shoal.workers`; several processes are in
`shoal.cli.worker_processes`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from shoal.bus.location import STATE_DIR_VARIABLE, URL_VARIABLE
from shoal.cli.numbers import positive_int
from shoal.cli.output import Subparsers, add_command, note, plural, result
from shoal.config import Settings
from shoal.errors import ConfigError, ShoalError

if TYPE_CHECKING:
    from shoal.workers.app import App
    from shoal.workers.worker import WorkerStatistics

DEFAULT_NAME: Final = "app"
"""The name that is looked for if only a module is given."""
PARENT_CHECK_S: Final = 1.0
"""How often a process of several checks that its parent still runs."""
PORT_MAX: Final = 65535
OUTCOMES: Final = ("done", "failed", "dead", "lost", "returned", "timeouts")


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "worker",
        run,
        "run the workers of an application",
        example="shoal worker shop.jobs:app\nshoal worker shop.jobs:app --queues orders,mail --processes 4 --grace 60",
        description=(
            "Run the workers of an application until SIGTERM or SIGINT. Then workers take no more jobs, give back "
            "those that were not started, and let running handlers continue for --grace seconds; a second signal "
            "ends them immediately."
        ),
    )
    parser.add_argument(
        "target",
        metavar="MODULE:APP",
        help="module and name of the shoal.App, from the current directory (APP is `app` if it is left out)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds for which handlers may keep running after SIGTERM (default 30)",
    )
    parser.add_argument("--queues", metavar="A,B", help="only the workers of these queues (default: all)")
    parser.add_argument(
        "--concurrency", type=positive_int, metavar="N", help="handlers of a worker at a time (default: as declared)"
    )
    parser.add_argument(
        "--processes",
        type=positive_int,
        default=1,
        metavar="N",
        help="number of processes; one that crashes is started again (default 1)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"cluster of an app without an address (default: ${URL_VARIABLE}, else the local cluster)",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics on this port, with one process (default: the setting metrics_port, else none)",
    )
    parser.add_argument("--summary-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run the workers."""
    _choose_cluster(args.url, args.settings)
    app = load_app(args.target)
    queues = _queue_names(args.queues)
    workers = app.chosen_workers(queues, args.concurrency)
    shown = ", ".join(f"{worker.queue} ({worker.concurrency} at a time)" for worker in workers)
    if args.processes > 1:
        from shoal.cli.worker_processes import run_processes

        note(f"{args.processes} processes run the workers of {shown}")
        facts = run_processes(args)
        if facts is None:
            return 1
    else:
        with _metrics_page(args):
            if args.summary_fd is None:
                note(f"running the workers of {shown}")
            started_at = time.monotonic()
            ended = _run_app(app, args, queues)
        facts = summary(args.target, ended, time.monotonic() - started_at)
    _report(args, facts)
    _leave_threads()
    return 0


def summary(target: str, ended: dict[str, WorkerStatistics], seconds: float) -> dict[str, Any]:
    """The facts of `--json`: how the jobs ended, altogether and by queue."""
    by_queue = {name: {word: getattr(one, word) for word in OUTCOMES} for name, one in ended.items()}
    total = {word: sum(one[word] for one in by_queue.values()) for word in OUTCOMES}
    return {"app": target, **total, "queues": by_queue, "seconds": round(seconds, 3)}


def load_app(target: str) -> App:
    """Import an app from the current directory. Raises ConfigError if there is none."""
    from shoal.workers.app import App

    module_name, _, path = target.partition(":")
    path = path or DEFAULT_NAME
    if not module_name or not all(word.isidentifier() for word in (*module_name.split("."), *path.split("."))):
        raise ConfigError(f"{target!r} is not MODULE:APP", do="write it as in `shoal worker shop.jobs:app`")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken_module(module_name, error) from error
        raise ConfigError(
            f"there is no module {error.name} in {os.getcwd()} or among the installed packages",
            do="start the command where the module can be imported",
        ) from None
    except ShoalError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken_module(module_name, error) from error
    for word in path.split("."):
        if not hasattr(found, word):
            apps = [name for name, value in vars(found).items() if isinstance(value, App)] if found else []
            do = f"write {module_name}:{apps[0]}" if apps else f"define it: {word} = shoal.App()"
            raise ConfigError(f"module {module_name} has no {path}", do=do)
        found = getattr(found, word)
    if not isinstance(found, App):
        raise ConfigError(f"{target} is a {type(found).__name__}, not a shoal.App", do="name the shoal.App")
    return found


def _broken_module(name: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"module {name} cannot be imported ({type(error).__name__}: {error})", do="--debug shows the traceback"
    )


def _choose_cluster(url: str | None, settings: Settings) -> None:
    """Name the cluster of apps without an address, for this process and for those that it starts."""
    if url or (settings.coordinator and not os.environ.get(URL_VARIABLE)):
        os.environ[URL_VARIABLE] = url or settings.coordinator
    os.environ[STATE_DIR_VARIABLE] = str(settings.state_path)


def _queue_names(text: str | None) -> list[str] | None:
    names = None if text is None else [name for name in text.split(",") if name]
    if names == []:
        raise ConfigError(f"--queues {text!r} names no queue", do="give names, for example orders,mail")
    return names


def _run_app(app: App, args: argparse.Namespace, queues: list[str] | None) -> dict[str, WorkerStatistics]:
    import uvloop

    async def main() -> dict[str, WorkerStatistics]:
        watch = None if args.parent is None else asyncio.create_task(_watch_parent(app, args.parent))
        try:
            return await app.run(queues=queues, concurrency=args.concurrency, grace=args.grace)
        finally:
            if watch is not None:
                watch.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def _watch_parent(app: App, parent: int) -> None:
    """Stop when the process that started this one has died, also if it died before this one got here."""
    while os.getppid() == parent:  # noqa: ASYNC110  # the system tells of no such event
        await asyncio.sleep(PARENT_CHECK_S)
    app.stop()


def _metrics_page(args: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    from shoal.metrics import MetricsPage

    port = args.settings.metrics_port if args.metrics_port is None else args.metrics_port
    if not 0 <= port <= PORT_MAX:
        raise ConfigError(f"--metrics-port is {port}", do="give a port, or 0 for none")
    if not port or args.summary_fd is not None:
        return contextlib.nullcontext()
    return MetricsPage(port, host=args.settings.metrics_host)


def _report(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    if args.summary_fd is not None:
        with os.fdopen(args.summary_fd, "w") as pipe:
            json.dump(facts, pipe)
        return
    words = ", ".join(f"{facts[word]} {word}" for word in OUTCOMES if facts[word] or word == "done")
    result(args, facts, f"stopped after {facts['seconds']:g} s: {words}")


def _leave_threads() -> None:
    """End the process if handlers in threads still run: the interpreter would wait for them."""
    left = [thread for thread in threading.enumerate() if thread.name.startswith("worker-")]
    for thread in left:
        thread.join(0.05)  # idle threads end by themselves
    if any(thread.is_alive() for thread in left):
        note(f"{plural(sum(thread.is_alive() for thread in left), 'handler')} in threads did not end in time")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number of seconds from 0, not {text!r}")
    return number
