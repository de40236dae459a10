"""Benches that are scripts find their modules in their own folders: so do their tests."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "bench" / name) for name in ("accuracy", "gpu", "public_programs")]
