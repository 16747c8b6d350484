"""Record batches through the Arrow C data interface, valid and broken: the laboratory `fuzz arrow`.

A dispatcher accepts each valid one, and the stream then holds the values that pyarrow reads. It refuses a broken one
before any row of it is sent, or accepts it, and each row has an outcome. The interface gives no sizes of buffers, so a
consumer cannot check everything: spoiled values stay within memory that belongs to the structure (`PADDING`).
"""
