"""Transport of frames: the actor loop, reliable channels, Unix sockets, ZeroMQ (CURVE) and the address book."""
