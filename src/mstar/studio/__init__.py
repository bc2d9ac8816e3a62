"""The studio: the server's own page in the browser. It asks the server over HTTP, as any other client does."""
