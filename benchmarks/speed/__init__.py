"""What benchmarks/kernel.py is made of: shapes, inputs, contenders, clocks, the floor, accuracy, results, pictures."""
