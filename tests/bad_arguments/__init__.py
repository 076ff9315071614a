"""Wrong arguments to every public function: what is refused, by which error, naming which argument.

The checks are the real ones; tensors only say what they are, and launches are recorded.
"""

import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.append(str(SUPPORT))  # of `python -m tests.bad_arguments`: the fakes
