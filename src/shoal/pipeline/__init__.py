"""The data pipeline: Spark jobs, the Spark data source, and what both are made of.

What runs on Spark is a plain function from Arrow to Arrow that also runs in process. Modules that need PySpark import
it inside functions, or are imported by Spark's paths only: no other command pays for it.
"""
