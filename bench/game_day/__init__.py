"""Game day: mixed load and injected faults against a real server, judged by the promises of the documentation."""
