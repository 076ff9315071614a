"""`python -m gemmgen`."""

from .cli import main

raise SystemExit(main())
