"""Live incarnations: a later one replaces the earlier ones of the same name."""

from mstar.wire.incarnations import LiveIncarnations
from mstar.wire.message import Peer, process_names


def a(incarnation):
    return Peer("a", incarnation)


def test_a_later_incarnation_replaces_the_earlier_ones():
    incarnations = LiveIncarnations()
    assert incarnations.oldest("a") == -1
    assert all(map(incarnations.is_live, (a(0), a(3))))
    assert [incarnations.add(peer) for peer in (a(1), a(1), a(3), a(1))] == [True, False, True, False]
    assert [incarnations.is_live(a(number)) for number in range(5)] == [False, False, False, True, True]
    assert incarnations.is_live(Peer("b", 0))


def test_a_removed_incarnation_is_dead_and_later_ones_are_not():
    incarnations = LiveIncarnations()
    incarnations.add(a(2))
    assert [incarnations.remove(peer) for peer in (a(2), a(2), a(1))] == [True, False, False]
    assert incarnations.oldest("a") == 3
    assert [incarnations.is_live(a(number)) for number in (2, 3)] == [False, True]


def test_the_two_processes_of_a_worker_do_not_replace_each_other():
    incarnations = LiveIncarnations()
    old, successor = (Peer(name, 1) for name in process_names("a"))
    assert old.worker == successor.worker == "a"
    incarnations.add(old)
    incarnations.add(successor)
    assert incarnations.is_live(old)
    incarnations.remove(successor)
    assert incarnations.is_live(old)
