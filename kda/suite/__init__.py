"""Running laws: subjects, the `law` decorator, comparisons, records, the guard file and the pytest plugin."""
