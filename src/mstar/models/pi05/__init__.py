"""pi0.5, a robot policy: what it sees, its task and its pose become its next actions."""
