"""Jobs that people run with Spark: each module is a command, `python -m magnetar.spark.jobs.…`."""
