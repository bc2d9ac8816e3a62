"""The peers that mstar is measured against, on the same weights and the same prompts.

Each peer takes a turn: prompts in, all at once; tokens and seconds out (`bench.peers.model.Turn`). All stay loaded, so
that turns can alternate and a change of the machine's mood meets everyone.
"""
