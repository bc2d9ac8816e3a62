"""`python -m mstar.cli` is `mstar`."""

from mstar.cli.commands import main

raise SystemExit(main())
