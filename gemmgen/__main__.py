"""`python -m gemmgen`."""
# PYTHON_ARGCOMPLETE_OK: what completes the words of any such module looks for this line.

from .cli import main

raise SystemExit(main())
