"""Language models that vLLM runs, in a worker whose interpreter has it."""
