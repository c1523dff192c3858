"""Builds the images with whatever builder is there, the one of our own Kubernetes among them: `make images`."""

from __future__ import annotations

import sys

from e2e.kubernetes.buildkit import own_builder
from images.build import main

if __name__ == "__main__":
    sys.exit(main(own_builder))
