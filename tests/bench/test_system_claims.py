"""Claims of the transfer and studio benches: the value is the worst figure, and every figure is reported."""

from bench.studio import studio_claim
from bench.transfer import BYTES, transfer_claim

FIGURES = {
    "all_files_kb": 70.0,
    "visit_kb": 45.0,
    "first_paint_s": 0.3,
    "frames_per_s": 55.0,
    "throughput_left_by_a_viewer": 0.99,
    "cpu_left_by_a_viewer": 0.985,
    "live_requests": 200,
}


def transfer_times(bare_over_ours, tcp_ms=2.0):
    times = {}
    for name, speed in zip(BYTES, bare_over_ours, strict=True):
        times |= {(name, "mooncake"): [1.0], (name, "bare mooncake"): [speed], (name, "tcp"): [tcp_ms]}
    return times


def test_the_slowest_size_decides_the_transfer_claim():
    claim = transfer_claim(transfer_times([0.29, 0.69, 1.09, 1.58]))
    assert claim.value == 0.29
    assert not claim.is_met
    assert "16 KB 0.29, 1 MB 0.69, 8 MB 1.09, KV of 2,000 tokens 1.58" in claim.claim
    assert "loopback addresses of one machine" in claim.claim


def test_the_transfer_claim_names_the_sizes_for_which_tcp_is_faster():
    assert claim_end(tcp_ms=1.0) == "16 KB, 1 MB, 8 MB, KV of 2,000 tokens"
    assert claim_end(tcp_ms=1.1) == "no size"


def claim_end(tcp_ms):
    return transfer_claim(transfer_times([1.0] * 4, tcp_ms)).claim.rpartition(" transport for ")[2]


def test_the_studio_claim_is_met_if_all_six_figures_are():
    claim = studio_claim(FIGURES)
    assert claim.is_met
    assert claim.value == 1.01


def test_one_missed_figure_misses_the_studio_claim():
    for name, missed in {
        "all_files_kb": 116.9,
        "visit_kb": 81.0,
        "first_paint_s": 1.1,
        "frames_per_s": 29.0,
        "throughput_left_by_a_viewer": 0.928,
        "cpu_left_by_a_viewer": 0.9,
        "live_requests": 150,
    }.items():
        claim = studio_claim(FIGURES | {name: missed})
        assert not claim.is_met, name
        assert claim.details[name] == missed
