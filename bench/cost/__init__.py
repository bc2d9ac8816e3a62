"""The CPU cost of the control path, by process."""
