"""Pictures of what was measured; matplotlib is imported only when one is drawn."""
