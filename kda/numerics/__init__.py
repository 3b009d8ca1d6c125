"""What a format can hold, the gate domain, the budget, and comparing."""
