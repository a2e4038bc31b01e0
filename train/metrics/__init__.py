"""What a run says of itself while it trains: numbers of each step, where they go, and when to warn."""
