"""Tools of MCP servers (Model Context Protocol) that the front end calls for a model."""
