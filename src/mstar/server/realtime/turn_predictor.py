"""Asks a served model whether the user has finished, for `semantic_vad`: the session's own model, or another one."""

from __future__ import annotations

import asyncio
from typing import cast

from mstar.frontend.response_stream import RequestEnded
from mstar.requests import AudioInput, TurnDetectionRequest, TurnPrediction
from mstar.server.errors import ApiError
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession
from mstar.wire import messages as m

TIMEOUT_S = 0.5
"""Seconds to wait for a prediction. The session handles no other event of the client meanwhile."""
UNKNOWN = TurnPrediction(continues=0.25, end_of_turn=0.75, backchannel=0.0)
"""Used without a prediction: speech interrupts, and with the default eagerness a second of silence ends a turn."""


class TurnPredictor:
    """Predictions for one session."""

    def __init__(self, websocket: WebSocketSession, session_model: ServedModel) -> None:
        self._websocket = websocket
        self._session_model = session_model

    def find_model(self) -> ServedModel:
        """The model that predicts: that of the session if it can, else the first by name. Raises ApiError."""
        models = self._websocket.state.served_models
        for served in (self._session_model, *(models[name] for name in sorted(models))):
            if TurnDetectionRequest in served.accepted_types:
                return served
        message = "no served model detects turns. fix: serve the model `turn-detector` too, or use server_vad"
        raise ApiError(400, "unsupported", message, param="session.audio.input.turn_detection")

    async def predict(self, audio: AudioInput) -> TurnPrediction:
        """Predict from the end of the user's audio. A model that fails or is late is not waited for."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._request(audio)
        except (ApiError, TimeoutError):
            return UNKNOWN

    async def _request(self, audio: AudioInput) -> TurnPrediction:
        with self._websocket.start_requests(self.find_model(), TurnDetectionRequest(audio)) as stream:
            async for event in stream:
                if isinstance(event, RequestEnded) and isinstance(event.end, m.RequestFinished):
                    return cast("TurnPrediction", event.end.result.content)
        return UNKNOWN
