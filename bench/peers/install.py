"""`python -m bench.peers.install [NAME...]`: make the venvs of the servers in the race; without names, of all.

They are small and take torch from the running venv, but for vLLM, which brings its own: some minutes, and 3.5 GB.
llama.cpp is compiled for this machine, which takes some minutes too and needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.peers.llama_cpp_peer import LLAMA_CPP, prepare_llama_cpp
from bench.peers.openvino_peer import OPENVINO, prepare_openvino
from bench.peers.peer_servers import PEERS
from bench.peers.venvs import FOLDER, make_venv
from bench.peers.vllm_venv import VENV, prepared

SYSTEM_PYTHON = "/usr/bin/python3"


def main(names: list[str], folder: Path) -> None:
    """Make them."""
    for peer in {peer.venv: peer for peer in PEERS if peer.venv in names or not names}.values():
        interpreter = SYSTEM_PYTHON if peer.uses_system_python else sys.executable
        make_venv(folder / peer.venv, peer.needs, interpreter)
    if LLAMA_CPP in names or not names:
        prepare_llama_cpp(folder)
    if OPENVINO in names or not names:
        prepare_openvino(folder)
    if "vllm" in names or not names:
        prepared(VENV)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.peers.install", description=__doc__)
    known = [*dict.fromkeys(peer.venv for peer in PEERS), LLAMA_CPP, OPENVINO, "vllm"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}", choices=[*known, []])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the venvs are made")
    chosen = parser.parse_args()
    main(chosen.names, chosen.folder)
