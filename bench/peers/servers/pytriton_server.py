"""PyTriton: Triton's server process with its dynamic batcher, and the whole model in one Python process behind it."""

import json
import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.peers.pipeline import FullPipeline
from bench.peers.servers import BATCH_WAIT_S, MAX_BATCH_SIZE
from bench.peers.traffic import decode_frames, encode_array


def main(port: int) -> None:
    """Serve until the process is told to end."""
    whole = FullPipeline()

    @batch
    def speak(body: Any) -> dict[str, Any]:
        # Triton batches tensors of equal shape: requests of unequal length are one string each.
        requests = [json.loads(one[0]) for one in body]
        sounds = whole(
            [decode_frames(request["frames"]) for request in requests], [request["tokens"] for request in requests]
        )
        return {"sound": np.array([[encode_array(sound).encode()] for sound in sounds], dtype=object)}

    config = ModelConfig(
        max_batch_size=MAX_BATCH_SIZE,
        batcher=DynamicBatcher(max_queue_delay_microseconds=int(BATCH_WAIT_S * 1e6)),
    )
    server = TritonConfig(http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False)
    with Triton(config=server) as triton:
        triton.bind(
            "speech",
            speak,
            inputs=[Tensor(name="body", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="sound", dtype=bytes, shape=(1,))],
            config=config,
        )
        triton.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
