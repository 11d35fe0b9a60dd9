"""Reads a column of a Parquet file of an unmounted image with pyarrow, by a file object: `pyarrow_parquet.py IMAGE PATH`."""

import sys

import ironmap
import pyarrow.parquet

image, path = sys.argv[1:]
with ironmap.Volume(image) as volume, volume.open(path) as file:
    # A ParquetFile reads in this thread. The threads of read_table can abort Python at the end of the program, with any file object.
    table = pyarrow.parquet.ParquetFile(file).read(columns=["value"], use_threads=False)
    print(len(table), sum(table["value"].to_pylist()))
