"""The CPU kernel in C++: its sources, and the loader of the compiled library."""
