"""CPU time of a process, and of the threads that libraries compute with."""

import threading
import time

from mstar import process_tuning


def spin(cpu_s):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def test_the_cpu_time_of_a_process_is_in_microseconds():
    before = process_tuning.process_usage()["cpu_us"]
    spin(0.02)
    assert 20_000 <= process_tuning.process_usage()["cpu_us"] - before < 5_000_000


def test_threads_of_python_are_no_threads_of_libraries():
    before = process_tuning.native_threads_cpu_us()
    finished, can_end = threading.Event(), threading.Event()

    def run():
        spin(0.1)
        finished.set()
        can_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    finished.wait()
    assert process_tuning.native_threads_cpu_us() - before < 100_000
    can_end.set()
    thread.join()


def test_the_threads_of_torch_are_threads_of_libraries():
    import torch

    before, threads = process_tuning.native_threads_cpu_us(), torch.get_num_threads()
    torch.set_num_threads(2)
    numbers, until = torch.ones(1 << 22), time.monotonic() + 20
    try:
        while process_tuning.native_threads_cpu_us() - before < 50_000:
            assert time.monotonic() < until
            numbers.mul_(1.0)
    finally:
        torch.set_num_threads(threads)
