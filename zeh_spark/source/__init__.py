"""Reading a feed into Spark. Offsets, planning and ending decide; fetching, staging, stream and
batch do.
"""
