"""A Python worker of Spark connects back before its interpreter starts.

Spark gives a worker ten seconds to connect, a constant (`PythonWorkerFactory.createSimpleWorker`). Its imports take
half a second of processor time, and the interpreter's own start a tenth: longer than that on a busy machine. For the
secret that a worker sends next the time can be set (`spark.python.authenticate.socketTimeout`). So the program beside
this one (`python`) connects, and Python, which imports this module at its start where its folder is on the path, takes
that connection for the worker's.
"""

from __future__ import annotations

import os
import socket
from typing import Any

_early_file = os.environ.pop("EARLY_WORKER_SOCKET", None)

if _early_file:
    _address = ("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"]))
    _early = [socket.socket(fileno=int(_early_file))]
    _early[0].set_inheritable(False)
    _Plain = socket.socket

    class _Socket(_Plain):
        """Whoever connects to Spark gets the connection that stands already, once."""

        def connect(self, address: Any, /) -> None:
            if address != _address or not _early:
                super().connect(address)
                return
            with _early.pop() as early:
                os.dup2(early.fileno(), self.fileno(), inheritable=False)
            self.settimeout(self.gettimeout())  # What is below has not heard of it.

    socket.socket = _Socket  # type: ignore[misc]
