"""Training and evaluation of the turn detector: `python -m tools.turn_detector`."""
