"""Channels: a turn beside few and many idle links costs the same, counted as executed bytecodes."""

from collections import Counter
from math import inf

from bench.cost.ticks import count_bytecodes
from mstar.wire.frame import Frame, FrameSigner, encode_peers
from mstar.wire.link import RESEND_TIMEOUT_S
from mstar.wire.messages import Cancel, Peer
from mstar.wire.transport.channels import Channels
from tests.wire.actors import KEY, MsgpackCodec, RecordingActor

LOCAL = Peer("local", 0)
SIGNER = FrameSigner(KEY)


class Transport:
    """Takes every frame, and delivers those in `incoming`."""

    has_more = False

    def __init__(self):
        self.incoming = []

    def send(self, peer, frame):
        return True

    def receive(self, fds):
        frames, self.incoming = self.incoming, []
        return [("", frame) for frame in frames]

    def listen(self, peer):
        """Nothing to do."""

    def check_name(self, peer):
        """Every name is valid."""

    def forget(self, peer):
        """Nothing is kept."""


def channels_to(count):
    """Channels to this many peers, which have acknowledged a message each."""
    transport = Transport()
    channels = Channels(transport, SIGNER, MsgpackCodec(), Counter(), lambda: None)
    channels.listen(RecordingActor("local"))
    peers = [Peer(f"peer{number}", 0) for number in range(count)]
    for peer in peers:
        channels.send(LOCAL, peer, Cancel("first"))
    channels.flush(0.0)
    assert channels.due(until=inf) == RESEND_TIMEOUT_S
    transport.incoming = [SIGNER.sign(Frame(encode_peers(peer, LOCAL), 0, 1, b"")) for peer in peers]
    channels.receive(0.0, [])
    assert channels.due(until=inf) == inf
    return channels, peers[0]


def cost_of_message(peers):
    channels, peer = channels_to(peers)

    def send():
        channels.send(LOCAL, peer, Cancel("second"))
        channels.flush(1.0)
        assert channels.due(until=inf) == 1.0 + RESEND_TIMEOUT_S

    return count_bytecodes(send)


def test_a_message_costs_the_same_beside_200_idle_links():
    assert cost_of_message(200) == cost_of_message(2)
