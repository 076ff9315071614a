"""Inputs by someone who means harm: each must be refused by a typed error, soon, with nothing written."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += (str(TESTS), str(TESTS / "support"))  # of `python -m tests.hostile`: the fakes
