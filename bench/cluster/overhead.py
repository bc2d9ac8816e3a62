"""Three workers on three hosts against the same three on one host, on the same cores, in turns.

The hosts are three network namespaces of one machine: the figure is the cost of encryption, TCP and Mooncake, not that
of a network. One worker prefills, two decode; the KV cache of each request moves from one to the other. Across hosts
frames are encrypted and the cache goes by Mooncake; on one host it is a unix socket and shared memory.

Workload: a decoder of the shape of SmolLM2-135M in bf16 with random weights, 16 requests with prompts of 20 to 200
tokens and 48 new tokens each, a short chat. Workers of a larger network send more bytes per request, but less often.
"""

from __future__ import annotations

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.cluster.driver import Driver, hosts
from bench.http.client import model_file

REQUESTS, NEW, ROUNDS = 16, 48, 5
PLACEMENT = """
[walks.read]
lm = "reads"
[walks.write]
lm = ["a", "b"]
[workers.reads]
host = "10.77.0.1"
[workers.a]
host = "10.77.0.2"
[workers.b]
host = "10.77.0.3"
"""
TARGET = 0.9


def overhead() -> Claim:
    """Throughput on three hosts relative to one."""
    speeds: dict[str, list[float]] = {"one": [], "three": []}
    with hosts(3) as made:
        driver = Driver(made)
        payload = {
            "models": {"lm": f"{model_file('disaggregated_lm')}:DisaggregatedLm"},
            "placements": {"lm": PLACEMENT},
            "threads": 1,
        }
        driver.call("start", ready_timeout_s=600.0, **payload)
        driver.call("start_here", **payload)
        for where in speeds:
            driver.call("write", where=where, count=REQUESTS, new=8)  # what only the first requests take
        for turn in range(ROUNDS):
            for where in list(speeds)[:: 1 if turn % 2 else -1]:
                speeds[where].append(driver.call("write", where=where, count=REQUESTS, new=NEW))
        driver.call("stop", drain_timeout_s=1.0)
        driver.call("stop_here")
    print_table(
        [
            Row("three workers on one host", "tokens/s", speeds["one"]),
            Row("the same on three network namespaces", "tokens/s", speeds["three"]),
        ]
    )
    share = paired_ratio(speeds["three"], speeds["one"])
    claim = (
        f"workers on three hosts (network namespaces of one machine, the same cores) have at least {TARGET} of the "
        "throughput of one host"
    )
    return Claim(claim, round(share, 3), TARGET, share >= TARGET)
