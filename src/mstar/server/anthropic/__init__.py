"""Messages API of Anthropic (`/v1/messages`), on top of the chat path."""
