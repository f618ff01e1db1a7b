"""Workers: decorated functions that process the jobs of queues.

An application declares its workers on an `App`; `shoal worker MODULE:APP` or `await app.run()` runs them.
docs/workers.md is the guide.

    app.py       App: the declared workers, running them, stopping gracefully
    worker.py    one worker: jobs to its handler, and how each job ends
    retry.py     what a handler raises, and the pauses between attempts
    threads.py   plain functions as handlers
"""
