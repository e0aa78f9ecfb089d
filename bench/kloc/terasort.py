"""TeraSort in Spark on this machine: records of 100 B with keys of 10 B are made, sorted by their
keys, and written.

    terasort.py DIRECTORY THREADS MIB

For bench/kloc/record.sh; needs pyspark of PyPI and a JDK.
"""

import sys

from pyspark.sql import SparkSession

directory, threads, mib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
records = (mib << 20) // 100

spark = (
    SparkSession.builder.master(f"local[{threads}]")
    .appName("terasort")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.extraJavaOptions", "-XX:-UsePerfData")
    .config("spark.local.dir", f"{directory}/shuffle")
    .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    # As many tasks as threads, in each of its parts.
    .config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.shuffle.partitions", str(threads))
    .config("spark.default.parallelism", str(threads))
    .config("spark.sql.files.maxPartitionBytes", str((mib << 20) // threads))
    # What the kernel copies within itself is not recorded.
    .config("spark.file.transferTo", "false")
    .config("spark.shuffle.compress", "false")
    .config("spark.shuffle.spill.compress", "false")
    .getOrCreate()
)
# A line is a record: its key, and what is filled up.
lines = spark.range(0, records, 1, threads).selectExpr(
    "concat(lpad(conv(cast(floor(rand(1) * 3656158440062976) as string), 10, 36), 10, '0'), "
    "rpad(cast(id as string), 89, 'x')) as value"
)
lines.write.text(f"{directory}/input")
spark.read.text(f"{directory}/input").orderBy("value").write.text(f"{directory}/output")
spark.stop()
