"""The data pipeline: Spark jobs, and the Spark data source "shoal".

    session.py           Spark sessions; spark/ is what they need
    source/              the data source
    load_job.py          load windows from telemetry; saved_folds.py keeps the fold's state between batches
    load_service.py      the same as a long-running job that sends windows to the balancer
    archive/             recorded channels into Parquet
    event_archive.py     reads archives for the jobs below
    bulk_match.py, _job  filters against an archive; filter_sets.py reads and compiles the filters
    profiles.py, _job    loads and overlaps of filters, from samples of an archive
    kept_windows.py      load windows in a folder; generated_windows.py makes some from a seed
    what_if.py, _job     policies and settings replayed over kept windows
    forecast.py          the load of the next day from kept windows
    job_folders.py       folders and locks of jobs

Code that runs on Spark is a function from Arrow to Arrow that also runs in process. PySpark is imported inside
functions, or in modules that only Spark loads, so that other commands do not need it.
"""
