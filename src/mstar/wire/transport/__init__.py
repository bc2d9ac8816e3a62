"""How messages travel: unix sockets, ZeroMQ, addresses, the actor loop."""
