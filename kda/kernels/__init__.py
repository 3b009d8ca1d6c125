"""The TileLang programs, their dialect, and compiling and launching them."""
