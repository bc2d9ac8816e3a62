"""Messages between processes: a closed set of messages, authenticated frames (MAC), exactly-once links."""
