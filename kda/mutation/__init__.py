"""Known mistakes, planted: what the laws must catch."""
