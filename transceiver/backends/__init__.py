"""What answers a call."""
