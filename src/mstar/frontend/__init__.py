"""The front end: delivers each emission of a request to its client exactly once and in order, across attempts."""
