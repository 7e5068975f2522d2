"""Lets the tests of this folder import what they share (`plant_rig`, `fake_triton`) by its name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
