"""A supervised child as other threads see it."""

from mstar.launch.child import Child
from mstar.wire.frame import encode_peers
from mstar.wire.messages import Peer
from tests.launch.supervisor_harness import ExitingChild, StubProcess


class ObservedChild(Child):
    """Child that records its peer each time its process is set, as a thread that sends to it would see it."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "process" and value is not None:
            self.seen = self.peer


def test_a_child_with_a_process_can_be_addressed_at_every_moment():
    child = ObservedChild("a+")
    child.on_started(object())
    assert child.seen == Peer("a+", 0)
    assert encode_peers(Peer("frontend", 0), child.seen)
    child.on_started(object())
    assert child.seen == Peer("a+", 1), "never the previous incarnation, which is dead"


def test_a_process_that_exits_while_another_thread_reads_its_state_is_no_error():
    child = ExitingChild("a")
    child.on_started(StubProcess())
    assert child.state() == "starting"
    assert child.state() == "waiting to be started"
