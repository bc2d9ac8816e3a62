"""What processes say to each other: a closed set of messages, frames that cannot be forged, links that lose nothing."""
