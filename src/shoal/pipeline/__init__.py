"""The data pipeline: Spark jobs, and the Spark data source "shoal".

    session.py           Spark sessions; spark/ is what they need
    source/              the data source
    load_job.py          load windows from telemetry; saved_folds.py keeps the fold's state between batches
    load_service.py      the same as a long-running job that sends windows to the balancer
    archive/             recorded channels into Parquet
    event_archive.py     reads archives for the jobs below
    bulk_match.py, _job  filters against an archive; filter_sets.py reads and compiles the filters
    profiles.py, _job    loads and overlaps of filters, from samples of an archive
    kept_windows.py      load windows as a table; generated_windows.py makes some from a seed, window_migration.py
                         turns those of an older version into a table
    report.py, _job      latency, traffic and cost from archives and kept windows; log_buckets.py has the percentiles
    replay.py            archived messages published again; archive_order.py has their order, message_ids.py their ids
    what_if.py, _job     policies and settings replayed over kept windows
    forecast.py          the load of the next day from kept windows
    job_folders.py       folders and locks of jobs; job_metrics.py has their metrics

Code that runs on Spark is a function from Arrow to Arrow that also runs in process. PySpark is imported inside
functions, or in modules that only Spark loads, so that other commands do not need it.
"""
