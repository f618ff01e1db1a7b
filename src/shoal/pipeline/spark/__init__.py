"""What jobs on Spark share.

    java.py               finds a Java that Spark can run on
    class_cache.py        a cache of Spark's classes, so that Java starts faster
    error_translation.py  Spark's errors as Shoal's
    tasks.py              runs functions over Arrow batches as Spark tasks
    worker_files.py       sends files to workers

Sessions themselves are `shoal.pipeline.session`.
"""
