"""The short form of `make power`: a few seconds of traffic on a standalone cluster, and a few cuts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.disturbing import building
from e2e.power import recording
from e2e.power.standalone import StandaloneSubject
from e2e.power.trial import Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # Three starts of a server, on any machine.
    pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler, with which changes are recorded"),
]

SECONDS = 1.0
CUTS = 2


def test_a_standalone_cluster_keeps_what_it_confirmed(tmp_path: Path) -> None:
    subject = StandaloneSubject(tmp_path / "disk", [])
    outcome = Trial(subject, recording.build(tmp_path), tmp_path, seed=1).run(SECONDS, CUTS)
    assert outcome.failures == []
    assert outcome.cuts == CUTS
