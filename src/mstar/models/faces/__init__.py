"""Faces: a photograph of somebody who does not exist, 1024 pixels wide, for each seed."""
