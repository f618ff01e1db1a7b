#!/bin/sh
# Starts Python for a worker on this machine. Spark puts archives of PySpark in front of the import path, and Python
# would compile what it imports from them in every process. Without them it imports the PySpark that is installed.
rest=$PYTHONPATH:
PYTHONPATH=
while [ -n "$rest" ]; do
    entry=${rest%%:*}
    rest=${rest#*:}
    case $entry in
    '' | */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$entry ;;
    esac
done
export PYTHONPATH
exec "$SHOAL_WORKER_PYTHON" "$@"
