"""Record batches through the Arrow C data interface, valid and broken: `make fuzz TARGET=arrow`.

A dispatcher takes each valid one, and the stream then holds what pyarrow says that it holds. It refuses a broken one
before any row of it was sent, or takes it, and each row has an outcome. The interface gives no sizes of buffers, so a
consumer cannot see everything: what is spoiled here stays within memory that belongs to the structure (`PADDING`).
"""
