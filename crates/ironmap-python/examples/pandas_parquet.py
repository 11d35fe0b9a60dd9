"""Reads a Parquet file of an unmounted image with pandas: `pandas_parquet.py IMAGE PATH`."""

import sys

import pandas

image, path = sys.argv[1:]
# Without pre_buffer, no thread of pyarrow reads: such a thread can abort Python at the end of the program, with any file object.
table = pandas.read_parquet(f"ironmap://{image}::{path}", pre_buffer=False, use_threads=False)
print(len(table), table["value"].sum())
