"""What zeh_spark costs, measured: `make bench`, or `python -m benchmarks [throughput memory
latency costs]`.
"""
