"""What is missing on this machine, or for a configuration at hand. Works with nothing but click installed."""
