"""What a Spark session needs: Java, its process, signals, errors, tasks.

    java.py               finds a Java that Spark can run on
    gateway.py            starts and ends the Java process
    class_cache.py        a cache of Spark's classes, so that Java starts faster
    interrupts.py         Ctrl-C while Spark starts, runs and ends
    error_translation.py  Spark's errors as Shoal's
    tasks.py              runs functions over Arrow batches as Spark tasks
    worker_files.py       sends files to workers
    progress.py           reports how many tasks are done

Sessions themselves are `shoal.pipeline.session`.
"""
