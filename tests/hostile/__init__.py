"""Inputs by someone who means harm: each must be refused by a typed error, soon, with nothing written."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))  # of `python -m tests.hostile`: the fakes
