"""How busy a machine is, and what is refused on a busy one."""

import pytest

from bench import machine
from bench.machine import CpuTimes, MachineBusy, OtherWork, other_work, require_quiet


def test_other_work_is_what_neither_this_process_nor_idling_took():
    begin = CpuTimes(total=100.0, busy=50.0, steal=5.0, own=10.0)
    end = CpuTimes(total=200.0, busy=90.0, steal=8.0, own=35.0)
    assert other_work(begin, end) == OtherWork(other=0.15, steal=0.03)


def test_rounding_of_the_kernel_gives_no_negative_share():
    begin, end = CpuTimes(10.0, 5.0, 0.0, 1.0), CpuTimes(10.0, 5.0, 0.0, 1.01)
    assert other_work(begin, end) == OtherWork(0.0, 0.0)


def test_the_counters_of_the_kernel_are_read(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 200 300 4000 500 60 70 800 90 10\ncpu0 1 2 3\n")
    monkeypatch.setattr(machine, "STAT", stat)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    times = machine.read_cpu_times()
    assert times.total == pytest.approx(60.3)
    assert times.busy == pytest.approx(7.3)
    assert times.steal == pytest.approx(8.0)


def test_own_work_is_not_other_work():
    begin = machine.read_cpu_times()
    while (end := machine.read_cpu_times()).own - begin.own < 0.2:
        pass
    others = max(end.busy - begin.busy - 0.2, 0.0)  # the kernel counts in ticks, and may be a few behind
    assert other_work(begin, end).other <= others / (end.total - begin.total) + 0.02


@pytest.mark.parametrize(
    ("result", "is_busy"),
    [
        (OtherWork(0.10, 0.10), False),
        (OtherWork(0.11, 0.0), True),
        (OtherWork(0.0, 0.11), True),
    ],
)
def test_other_processes_and_other_machines_have_a_limit(result, is_busy):
    assert result.is_busy == is_busy


def test_a_busy_machine_is_refused_with_its_figures():
    with pytest.raises(MachineBusy, match=r"(?s)use 43% .*limit 10%.*machines 2% .*fix: .*--busy"):
        require_quiet(OtherWork(0.43, 0.02))
    require_quiet(OtherWork(0.05, 0.02))


def sampled(monkeypatch, *shares: float) -> tuple[OtherWork, int]:
    left = list(shares)
    monkeypatch.setattr(machine, "SAMPLE_S", 0.0)
    monkeypatch.setattr(machine, "other_work", lambda begin, end: OtherWork(left.pop(0), 0.0))
    result = machine.sample_other_work()
    return result, len(shares) - len(left)


def test_the_first_quiet_sample_counts(monkeypatch):
    assert sampled(monkeypatch, 0.9, 0.5, 0.04, 0.9, 0.9) == (OtherWork(0.04, 0.0), 3)


def test_a_machine_that_stays_busy_is_busy(monkeypatch):
    assert sampled(monkeypatch, 0.9, 0.8, 0.7, 0.6, 0.5) == (OtherWork(0.5, 0.0), 5)


def test_a_machine_has_a_processor_and_no_name():
    here = machine.read_machine()
    assert here.cpu
    assert here.cores >= 1
