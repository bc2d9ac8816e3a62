"""The launcher's state as a front end in another process gets it."""

from collections import Counter

from mstar.config import RateLimit
from mstar.server.access.api_keys import ApiKeys, Tenant, hash_key
from mstar.server.frontends.deployment_view import apply_view, decode_view, encode_view
from mstar.server.frontends.siblings import Siblings
from mstar.server.state import ServerState
from mstar.server.status import Phase, RolloutStatus, WorkerProcessStatus
from mstar.wire.message import Peer
from mstar.wire.slo import Slo

OWN, OTHER = Peer("front-1", 2), Peer("front-2", 0)
LIMIT, SLO = RateLimit(requests_per_second=3, max_concurrent=2), Slo(ttft_s=0.5, weight=2.0)


def report(launcher, tmp_path, state=None):
    """Send the state of a launcher to a front end."""
    state = state or ServerState({})
    state.siblings = Siblings(tmp_path, 1, 2, Peer("launcher", 0))
    apply_view(state, decode_view(encode_view(launcher, [Peer("a", 1)], [OWN, OTHER])), OWN)
    return state


def test_a_front_end_has_the_state_of_the_launcher(tmp_path):
    launcher = ServerState({})
    launcher.phase = Phase("warming up", 1, 2)
    status = WorkerProcessStatus("restarting", failed_starts=2, next_start_in_s=1.5, devices={"m.lm": "cuda:0"})
    launcher.process_statuses = lambda: {"a": status}
    launcher.rollout = lambda: RolloutStatus("running", completed=1)
    launcher.warmup_calls = Counter({("a", "m", "walk"): 3})
    state = report(launcher, tmp_path)
    assert state.phase == launcher.phase
    assert state.process_statuses() == {"a": status}
    assert state.rollout() == launcher.rollout()
    assert state.warmup_calls == launcher.warmup_calls
    assert [*state.peers()] == [Peer("a", 1)]
    assert [*state.siblings.peers] == [OTHER]


def test_a_front_end_that_drains_keeps_its_phase(tmp_path):
    launcher, state = ServerState({}), ServerState({})
    launcher.phase = Phase("warming up")
    state.drain()
    assert report(launcher, tmp_path, state).phase.name == "draining"


def test_a_front_end_has_the_keys_of_the_launcher(tmp_path):
    tenants = {hash_key("t"): Tenant("team", LIMIT, SLO)}
    launcher = ServerState({}, ApiKeys(["k"], LIMIT, tenants, SLO, ["root"]))
    state = report(launcher, tmp_path)
    tenant = state.keys.authenticate("Bearer t")
    assert (tenant.name, tenant.rate_limit, tenant.slo, tenant.is_operator) == ("team", LIMIT, SLO, False)
    assert state.keys.authenticate("Bearer root").is_operator
    assert state.keys.authenticate("Bearer none") is None
    tenant.work.active_requests += 1
    launcher.keys.replace(ApiKeys([], LIMIT, tenants))
    report(launcher, tmp_path, state)
    assert state.keys.authenticate("Bearer k") is None
    assert state.keys.authenticate("Bearer t").work.active_requests == 1, "requests in progress stay counted"


def test_a_front_end_without_keys_has_the_limits_of_the_anonymous_tenant(tmp_path):
    state = report(ServerState({}, ApiKeys(rate_limit=LIMIT, slo=SLO)), tmp_path)
    assert not state.keys.is_required
    tenant = state.keys.authenticate("")
    assert (tenant.rate_limit, tenant.slo, tenant.is_operator) == (LIMIT, SLO, True)
