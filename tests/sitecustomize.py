"""Every Python that tests start imports this first: `PYTHONPATH` has its folder.

A worker that runs the driver's part of a stream must connect to Spark within ten seconds, which no option changes, and
imports pyspark before. Spark puts the modules in pyspark.zip first, which each worker would compile; from their folder
they take half the processor time.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("/python/lib/pyspark.zip")]
