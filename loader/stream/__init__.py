"""How samples get here."""
