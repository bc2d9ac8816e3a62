"""The engine: runs one op for one batch. It knows no walks, no clock, no thread and no IO."""
