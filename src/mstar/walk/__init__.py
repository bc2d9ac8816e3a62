"""The authoring API: what a model author imports, and the tracer that turns walks into graphs."""
