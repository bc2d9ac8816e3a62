"""Entry point of `python -m mstar.cli`, the same as `mstar`."""

from mstar.cli.main import main

raise SystemExit(main())
