"""Entries as objects of the interpreter: the collector of cycles does not look at compiled ones."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import magnetar.managed.entry
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.metadata import MessageMetadataView

COMPILED = Path(magnetar.managed.entry.__file__).suffix != ".py"

NESTED = """
from magnetar.managed.entry import Entry
from magnetar.wire.pulsar.metadata import MessageMetadataView
for depth in range(200):
    nest = []
    for number in range(depth):
        nest = [nest, Entry(1, number, b"data"), MessageMetadataView()]
    del nest
"""
"""The interpreter frees the inner parts of a deep nest later, and keeps them in a list meanwhile: by a head that only
objects of the collector have."""


def test_the_collector_of_cycles_does_not_look_at_compiled_entries() -> None:
    """A broker keeps a hundred thousand in its caches; nothing that they refer to leads back to them."""
    assert gc.is_tracked(Entry(1, 2, b"data")) != COMPILED
    assert gc.is_tracked(MessageMetadataView()) != COMPILED


def test_entries_are_freed_in_a_deep_nest() -> None:
    subprocess.run([sys.executable, "-c", NESTED], env=os.environ | {"PYTHONMALLOC": "debug"}, check=True)
