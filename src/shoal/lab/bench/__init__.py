"""Side-by-side measurements: what `shoal bench` runs.

Owns the workloads, the contenders and the ratios. A ratio is a fact: nothing here decides whether it is good enough.

`shoal bench channels`

    channels.py          the measurement
    contender.py         the interface of the contenders; client_redis_py.py, client_raw.py and client_shoal.py
    contender_worker.py  a process of one contender
    agent_cost.py        the cost of a server's agent, under the load of flood.py

`shoal bench match` and `shoal bench quotes`

    match.py             the index of filters and other contenders
    match_churn.py       the time of a match while subscriptions come and go
    match_quotes.py      subscriptions of a paper against every quote of its data set
    matcher.py           the interface of the contenders; match_index.py and match_others.py
    filter_columns.py    filters as columns, for some of the others
    loads/               filters and events

`shoal bench plan` and `shoal bench pipeline`

    plan.py              one decision of each policy about the load of plan_load.py
    pipeline.py          jobs on Spark: pipeline_source.py, pipeline_load.py, pipeline_archive.py and pipeline_match.py

`shoal bench engine`

    engine.py            the engine beside channels, with and without `where=`
    engine_worker.py     an emitter or the readers, in a process
    engine_layouts.py    the engine of a cluster in a chosen configuration
"""
