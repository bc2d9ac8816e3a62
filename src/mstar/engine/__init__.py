"""Engine: runs one op for one batch. It knows no walks, no scheduling, no thread and no IO."""
