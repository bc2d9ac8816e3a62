"""Public test kit: run and check walks without weights, devices or a server.

`local_runtime` serves requests in one process, `parity` compares that with the eager run. `toy_language`, `toy_speech`
and `toy_worlds` are fake components (test doubles) that compute little; running them needs numpy, tracing them does
not.
"""

from mstar.testing.parity import parity, parity_all

__all__ = ["parity", "parity_all"]
