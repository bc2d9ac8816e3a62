"""Turn detector: has the speaker finished, paused, or only acknowledged (backchannel)?"""
