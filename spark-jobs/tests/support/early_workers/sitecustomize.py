"""A Python worker of Spark connects back before it imports what it needs.

Spark gives a worker ten seconds to connect, a constant (`PythonWorkerFactory.createSimpleWorker`); its imports take
half a second of processor time, which is longer than that on a busy machine. For the secret that a worker sends next
the time can be set (`spark.python.authenticate.socketTimeout`). Python imports this module at its start where its
folder is on the path.
"""

from __future__ import annotations

import os
import socket
from typing import Any

_port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")

if _port:
    _address = ("127.0.0.1", int(_port))
    _early = [socket.create_connection(_address)]
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
