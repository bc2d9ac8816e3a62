"""Copies of realtime sessions at other servers, so that a call outlives its front end and the host of it."""
