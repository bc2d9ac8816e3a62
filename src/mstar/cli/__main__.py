"""`python -m mstar.cli` is `mstar`."""

from mstar.cli.main import main

raise SystemExit(main())
