"""Parts of benchmarks/slow_link.py: what is measured, the network it is measured on, and the process that measures."""
