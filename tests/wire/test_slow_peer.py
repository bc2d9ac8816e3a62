"""A process that reads slowly: what it is sent waits, and is neither signed nor sent twice."""

import signal
import time

from mstar.wire.messages import Peer
from tests.wire.actors import RecordingActor, send_cancels, wait_until
from tests.wire.test_actor_loop import A, echo_process, run_actor_loop


def test_a_slow_process_gets_every_frame_once(tmp_path):
    echo, text = Peer("echo", 0), "x" * 100_000
    with run_actor_loop(tmp_path, a := RecordingActor("a")) as actor_loop, echo_process(tmp_path, 0) as process:
        send_cancels(actor_loop, A, echo, "first")
        a.wait(lambda: a.received)
        process.send_signal(signal.SIGSTOP)
        for n in range(100):  # 10 MB: far more than the transport queues
            send_cancels(actor_loop, A, echo, f"{n}{text}")
            time.sleep(0.001)  # frames of their own
        wait_until(lambda: actor_loop.counters["full"])
        full = actor_loop.counters["full"]
        time.sleep(0.3)
        assert actor_loop.counters["full"] - full <= 20  # one frame in 20 ms is refused, not all that wait
        process.send_signal(signal.SIGCONT)
        a.wait(lambda: len(a.received) == 101)
    assert [rid.partition(":")[2][:-100_000] for rid in a.received_rids[1:]] == [str(n) for n in range(100)]
    assert actor_loop.counters["sent"] < 101 + 32 + 20  # one resend after the pause, and acknowledgements
