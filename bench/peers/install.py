"""`python -m bench.peers.install [NAME...]`: make the venvs of the servers in the race; without names, of all.

They are small and take torch from the running venv, but for vLLM, which brings its own: some minutes, and 3.5 GB.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.peers.peer_servers import PEERS
from bench.peers.venvs import FOLDER, make_venv
from bench.peers.vllm_venv import VENV, prepared


def main(names: list[str], folder: Path) -> None:
    """Make them."""
    for name, needs in {peer.venv: peer.needs for peer in PEERS if peer.venv in names or not names}.items():
        make_venv(folder / name, needs)
    if "vllm" in names or not names:
        prepared(VENV)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.peers.install", description=__doc__)
    known = [*dict.fromkeys(peer.venv for peer in PEERS), "vllm"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}", choices=[*known, []])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the venvs are made")
    chosen = parser.parse_args()
    main(chosen.names, chosen.folder)
