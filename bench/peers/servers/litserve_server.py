"""LitServe: the whole model in one process that is given batches."""

import sys
from typing import Any

import litserve

from bench.peers.servers import BATCH_WAIT_S, MAX_BATCH_SIZE
from bench.peers.traffic import decode_frames, encode_array


class SpeechApi(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002 - as the library calls it
        from bench.peers.pipeline import FullPipeline

        self.whole = FullPipeline()

    def decode_request(self, request: dict[str, Any]) -> tuple[Any, int]:
        return decode_frames(request["frames"]), request["tokens"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, inputs: list[tuple[Any, int]]) -> list[Any]:
        return self.whole(*zip(*inputs, strict=True))

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, str]:
        return {"sound": encode_array(output)}


if __name__ == "__main__":
    # LitServe starts an MCP server if `mcp` can be imported, which is in the running venv, but needs fastmcp for it.
    litserve.server._MCP_AVAILABLE = False
    server = litserve.LitServer(
        SpeechApi(max_batch_size=MAX_BATCH_SIZE, batch_timeout=BATCH_WAIT_S), accelerator="cpu", timeout=120
    )
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, num_api_servers=1)
