"""What the proxy's tests share."""

from __future__ import annotations
