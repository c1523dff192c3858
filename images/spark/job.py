"""The jobs as the one file that `spark-submit` wants: spark-submit … local:///opt/magnetar/job.py archive --topic …"""

from magnetar.spark.jobs.__main__ import app

app()
