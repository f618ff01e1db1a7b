"""Side-by-side measurements: what `shoal bench` runs.

Owns the workloads, the contenders and the arithmetic of the ratios. A ratio is a fact, not a test: nothing
here decides whether it is good enough.

    channels.py    the measurement: contenders in turn, medians, ratios
    workers.py     the processes of the contenders, as the measurement sees them
    worker.py      one such process: publishes or receives when it is told to
    contender.py   what a contender must be able to do; `of_redis_py`, `of_raw` and `of_shoal` are the three
    agent_cost.py  what the agent of a server costs
    plan.py        the policies, one decision each about the same load, which `plan_load.py` makes
    match.py       the index of filters beside others: `match_contender.py` says what they must be able to do,
                   `match_ours`, `match_naive`, `match_numpy`, `match_polars` and `match_duckdb` are they, and
                   `match_columns.py` has filters as columns for the last three
    pipeline_match.py  bulk matching on Spark beside one core
    match_churn.py the time of a match while subscriptions come and go
    quotes.py      subscriptions of a paper against every quote of its data set
    loads/         the filters and events of these
    machine.py     what machine it was
"""
